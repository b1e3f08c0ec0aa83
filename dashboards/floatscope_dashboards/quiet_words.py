"""What a verdict without a finding rests on, and what it cannot say."""

from __future__ import annotations

from floatscope_dashboards.checks import check_counts
from floatscope_dashboards.facts import PLAIN_RECIPES, coverage
from floatscope_dashboards.say import Say
from floatscope_dashboards.views import RunView


def no_fp8(view: RunView) -> bool:
    """Whether there is no FP8 tensor for the FP8 checks to look at."""
    return coverage(view).in_fp8 == 0


def baseline_is_missing(view: RunView) -> bool:
    """An FP8 run without a baseline: slow drift cannot be told from noise."""
    return view.row.baseline is None and not no_fp8(view)


def baseline_why(say: Say) -> str:
    """What the missing baseline means."""
    return say(
        "Slow drift cannot be told from normal noise until there is a BF16 run with the same data order."
    )


def quiet_why(view: RunView, say: Say) -> list[str]:
    """What was judged, in whole sentences."""
    found = coverage(view)
    if found.in_fp8:
        said = [say.plural("{n} FP8 tensor in range.", "{n} FP8 tensors in range.", found.in_fp8)]
    elif found.tensors:
        said = [
            say.plural(
                "{n} tensor and the loss are judged.", "{n} tensors and the loss are judged.", found.tensors
            )
        ]
    else:
        said = [say("No tensor statistics were sent, so only the loss and the other scalars are judged.")]
    if not found.in_fp8 and found.recipe not in PLAIN_RECIPES:
        said.append(
            say(
                "If you expected FP8: the recipe {recipe} was announced, but no module reported an FP8 "
                "tensor.",
                recipe=found.recipe,
            )
        )
    unable = check_counts(view).unable
    if unable:
        said.append(
            say.plural(
                "{n} check could not look, see below.", "{n} checks could not look, see below.", unable
            )
        )
    return said
