"""All checks of the machine and its software: what does not depend on the model."""

from __future__ import annotations

from floatscope.preflight.check import Check
from floatscope.preflight.facts import Facts, Wanted
from floatscope.preflight.gpu_checks import gpu_checks
from floatscope.preflight.hardware_checks import hardware_checks
from floatscope.preflight.hardware_xids import xid_checks
from floatscope.preflight.recipe_matrix import recipe_check
from floatscope.preflight.software_checks import software_checks
from floatscope.preflight.software_flags import flag_checks
from floatscope.preflight.software_te import te_checks


def machine_checks(facts: Facts, wanted: Wanted) -> list[Check]:
    """The checks of GPU, recipe, software and hardware, in the order in which a reader asks: is there a GPU,
    does it run the recipe, do the versions fit, is it healthy.
    """
    return [
        *gpu_checks(facts, wanted),
        *recipe_check(facts, wanted),
        *software_checks(facts, wanted),
        *te_checks(facts, wanted),
        *flag_checks(facts, wanted),
        *hardware_checks(facts, wanted),
        *xid_checks(facts, wanted),
    ]
