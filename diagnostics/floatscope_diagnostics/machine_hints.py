"""Adds to a finding what the run's preflight knows of its machine. Cause, onset and confidence stay as the
rules said them; a run without a preflight gets nothing added.
"""

from __future__ import annotations

from dataclasses import replace

from floatscope_diagnostics.machine import Machine
from floatscope_diagnostics.rule import Finding

OUT_OF_RANGE = ("masked_nonfinite", "invalid_input", "activation_overflow", "stale_scale_saturation")
"""Causes whose harm depends on what a cast does with values that do not fit."""
SATURATES = (
    "Preflight tried it on this machine: casts to E4M3 saturate, so that an Inf becomes 448 and leaves no "
    "trace behind the cast."
)
BECOMES_NAN = (
    "Preflight tried it on this machine: casts to E4M3 do not saturate, so that a value beyond 448 becomes "
    "NaN behind the cast."
)
FAST_SUMS = "Preflight saw fast accumulation here, which truncates long sums"


def hinted(finding: Finding, machine: Machine) -> Finding:
    """The finding with one sentence more in its remedy, where there is one to add."""
    said = ""
    if finding.cause in OUT_OF_RANGE and machine.saturates is not None:
        said = SATURATES if machine.saturates else BECOMES_NAN
    elif finding.cause == "accumulation_precision" and (read := machine.warned("fast_accumulation")):
        said = f"{FAST_SUMS}: {read}."
    if not said:
        return finding
    return replace(finding, remedy=replace(finding.remedy, text=f"{finding.remedy.text} {said}"))
