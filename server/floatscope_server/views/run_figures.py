"""Numbers of many runs at once for the lines of the overview: headroom, clipped values, steps configured."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from floatscope_server.store import run_lists
from floatscope_server.store.warm import Warm

LATELY_BATCHES = 8
"""Statistics are sampled every so many steps: the last batches are looked through for the last sample."""
AT_ONCE = 500
BYTES = 256  # about what is remembered of a run
STEP_KEYS = (
    "max_steps", "total_steps", "train_steps", "num_train_steps", "train_iters", "max_iters",
    "training_steps", "num_steps", "steps",
)  # fmt: skip
"""What training loops call the number of steps, likeliest first; also inside of these parts:"""
STEP_PARTS = ("training", "train", "trainer", "args", "training_args", "optim", "schedule")


@dataclass(frozen=True)
class Figures:
    """headroom: least of all tensors, binades.  clipped: most of all tensors, %. None: not sampled lately."""

    headroom: float | None = None
    clipped: float | None = None


def figures(c: Connection, arrivals: Mapping[int, int], warm: Warm | None) -> dict[int, Figures]:
    """Run -> its figures. arrivals: run -> batches it has, by which they are remembered."""
    found: dict[int, Figures] = {}
    for some in _slices(list(arrivals)):
        unknown = []
        for run in some:
            kept: tuple[int, Figures] | None = None if warm is None else warm.get(("figures", run))
            if kept is not None and kept[0] == arrivals[run]:
                found[run] = kept[1]
            else:
                unknown.append(run)
        if not unknown:
            continue
        glances = run_lists.last_glances(c, unknown, batches=LATELY_BATCHES)
        for run in unknown:
            found[run] = _figures(glances.get(run, ()))
            if warm is not None:
                warm.keep(("figures", run), (arrivals[run], found[run]), BYTES)
    return found


def totals(c: Connection, described: Mapping[int, int], warm: Warm | None) -> dict[int, int]:
    """Run -> the steps it is to take, for those whose configuration says it. described: run -> number of
    changes of its description, by which they are remembered.
    """
    found: dict[int, int] = {}
    unknown = []
    for run, changes in described.items():
        kept: tuple[int, int | None] | None = None if warm is None else warm.get(("total", run))
        if kept is None or kept[0] != changes:
            unknown.append(run)
        elif kept[1] is not None:
            found[run] = kept[1]
    for run, text in run_lists.infos(c, unknown).items() if unknown else ():
        total = _total(text)
        if total is not None:
            found[run] = total
        if warm is not None:
            warm.keep(("total", run), (described[run], total), BYTES)
    return found


def _slices(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    for first in range(0, len(ids), AT_ONCE):
        yield ids[first : first + AT_ONCE]


def _figures(glances: Sequence[str]) -> Figures:
    """Of the newest glance that has each. A damaged one says nothing here; the run's page names it."""
    numbers: dict[str, float] = {}
    for text in glances:
        try:
            glance = json.loads(text)
        except ValueError:
            continue
        for name in ("headroom_log2", "overflow_pct"):
            value = glance.get(name) if isinstance(glance, dict) else None
            if isinstance(value, int | float) and math.isfinite(value):
                numbers.setdefault(name, float(value))
    return Figures(numbers.get("headroom_log2"), numbers.get("overflow_pct"))


def _total(text: str) -> int | None:
    try:
        config = json.loads(text).get("config")
    except (ValueError, AttributeError):
        return None  # a damaged description: the run's page names it
    if not isinstance(config, dict):
        return None
    places: list[Any] = [config, *(config.get(part) for part in STEP_PARTS)]
    for place in places:
        for key in STEP_KEYS if isinstance(place, dict) else ():
            value = place.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None
