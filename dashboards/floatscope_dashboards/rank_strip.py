"""The strip of ranks over time: which scalars can be chosen, and what is said when there is nothing."""

from __future__ import annotations

from dataclasses import dataclass

from floatscope_dashboards.pictures_view import RanksView
from floatscope_dashboards.say import Say, later

WORDS = {
    "gpu_util_pct": (later("GPU utilisation"), "%"),
    "step_time_s": (later("Step time"), "s"),
    "gpu_temp_c": (later("GPU temperature"), "°C"),
    "gpu_power_w": (later("GPU power"), "W"),
    "gpu_mem_gib": (later("GPU memory"), "GiB"),
    "data_time_s": (later("Data wait"), "s"),
}
"""Scalar -> its name for people and its unit, in the order of the switch."""


@dataclass(frozen=True)
class Choice:
    """One scalar of the switch."""

    name: str
    label: str
    unit: str


@dataclass(frozen=True)
class Strip:
    """choices: none when there is nothing to draw; ``why`` says so then."""

    choices: tuple[Choice, ...]
    why: str
    ranks: int


def rank_strip(view: RanksView, say: Say) -> Strip:
    """The card as it is before the script draws into it."""
    choices = tuple(
        Choice(name, say(label), unit) for name, (label, unit) in WORDS.items() if name in view.names
    )
    has_gpu = any(name.startswith("gpu_") for name in view.names)
    why = ""
    if not view.ranks:
        why = say("Nothing has arrived yet.")
    elif not choices:
        why = say("This run logs neither the use of its GPUs nor the time of its steps.")
    elif not has_gpu and view.ranks == 1:
        why = say(
            "One process without a GPU: there are no ranks to compare. Readings of a GPU come by themselves "
            "where nvidia-ml-py finds one."
        )
        choices = ()
    return Strip(choices, why, view.ranks)
