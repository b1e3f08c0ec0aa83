"""The checks that only look at facts. What tries something out stands in ``parts``, which the agent does not
load into a training process.
"""

from __future__ import annotations

from collections.abc import Mapping

from floatscope.preflight.distribution_checks import distribution_checks
from floatscope.preflight.environment_checks import environment_checks
from floatscope.preflight.framework_checks import framework_checks
from floatscope.preflight.machine import machine_checks
from floatscope.preflight.run import CheckPart


def pure_parts() -> Mapping[str, CheckPart]:
    """Checks that only look at facts: what the agent can ask inside a training process."""
    return {
        "machine": machine_checks,
        "environment": environment_checks,
        "frameworks": framework_checks,
        "distribution": distribution_checks,
    }
