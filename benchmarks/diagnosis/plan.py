"""Which runs the library has, in the order in which they are made: it can be stopped at any time and what
is there is balanced over splits, recipes, seeds and kinds of run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.diagnosis.cases import Case, Scenario, draw_scenarios
from benchmarks.diagnosis.later_cases import LATER_CASES, LATER_CONTROLS
from benchmarks.diagnosis.other_cases import CONTROLS, OTHER_CASES
from benchmarks.diagnosis.scale_cases import SCALE_CASES
from benchmarks.diagnosis.settings import (
    FIRST_TUNING_SEED,
    FIRST_UNSEEN_SEED,
    RECIPES,
    SECOND_TUNING_SEED,
    SHAPES,
    Base,
)

CASES: tuple[Case, ...] = (*SCALE_CASES, *OTHER_CASES)


@dataclass(frozen=True)
class Size:
    """How much of the library.

    rounds: seeds, once for tuning and once for what nobody sees.  steps: of a healthy run.  faults, controls:
    forked from each.  later: of the cases drawn beside the others, one more control too.
    demo_every: every so many-th seed has the demo's model shape instead of the small one; 0 for never.
    second_tuning_seeds: whether it has those too.
    """

    rounds: int
    steps: int
    faults: int
    controls: int
    later: int = 0
    recipes: tuple[str, ...] = tuple(RECIPES)
    shape: str = "small"
    demo_every: int = 0
    second_tuning_seeds: bool = False


FULL = Size(rounds=12, steps=2000, faults=10, controls=3, later=2, demo_every=3, second_tuning_seeds=True)
"""About 650,000 healthy steps and 5,200 forks; many hours."""
SMALL = Size(
    rounds=1,
    steps=500,
    faults=6,
    controls=1,
    recipes=("delayed-max-16", "current", "fp16"),
)
"""3,000 healthy steps and 42 forks; it fits a CI job of three minutes."""


@dataclass(frozen=True)
class Entry:
    """A healthy run and what is forked from it."""

    base: Base
    scenarios: tuple[Scenario, ...]


def entries(size: Size) -> Iterator[Entry]:
    """The library in order. From one recipe to the next the seed changes too, so that a library that was
    stopped early has as many seeds as it can; what nobody has seen comes first, the second seeds last.
    """
    seconds = (SECOND_TUNING_SEED,) if size.second_tuning_seeds else ()
    for first in (FIRST_UNSEEN_SEED, FIRST_TUNING_SEED, *seconds):
        yield from _turns(size, first)


def _turns(size: Size, first_seed: int) -> Iterator[Entry]:
    for turn in range(size.rounds):
        for position, recipe in enumerate(size.recipes):
            index = (turn + position) % size.rounds
            is_demo = size.demo_every > 0 and (index + 1) % size.demo_every == 0
            shape = "demo" if is_demo else size.shape
            yield entry(Base(shape=shape, recipe=recipe, seed=first_seed + index, steps=size.steps), size)


def entry(base: Base, size: Size) -> Entry:
    """A healthy run with the faults and controls that are drawn for it."""
    depth = SHAPES[base.shape].layers
    faults = draw_scenarios(base, CASES, depth=depth, count=size.faults)
    controls = draw_scenarios(base, CONTROLS, depth=depth, count=size.controls)
    later = draw_scenarios(base, LATER_CASES, depth=depth, count=size.later)
    if size.later:
        later += draw_scenarios(base, LATER_CONTROLS, depth=depth, count=1)
    return Entry(base=base, scenarios=(*faults, *controls, *later))
