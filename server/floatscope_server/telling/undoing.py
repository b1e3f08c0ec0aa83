"""The way back from what a person did with an alert: what must be done to it so that it stands as before."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

from floatscope_server.telling import states
from floatscope_server.telling.states import FIRING, SILENCED, Standing

STEPS = ("reopen", "acknowledge", "resolve", "not_the_cause")
MOST_STEPS = 3
"""Of an alert that was acknowledged after its run had recovered, and closed: opened twice, acknowledged."""


@dataclass(frozen=True)
class Step:
    """One action of the way back. expected: the state in which it finds the alert; in another one somebody,
    or the run, has gone on with it.
    """

    event: str
    expected: str


@lru_cache(maxsize=1024)
def way_back(before: Standing, now: Standing, *, covered: bool, is_past: bool) -> tuple[Step, ...]:
    """The shortest way, none where nothing changed. covered, is_past: as of ``states.after``.

    What fired and is under a silence by now, or the other way round, ends silenced or firing.
    """
    wanted = (FIRING, SILENCED) if before.state in (FIRING, SILENCED) else (before.state,)
    ways: list[tuple[Standing, tuple[Step, ...]]] = [(now, ())]
    for _ in range(MOST_STEPS + 1):
        for at, way in ways:
            if _is_there(at, before, wanted):
                return way
        ways = [
            (states.after(at, event, covered=covered, is_past=is_past), (*way, Step(event, at.state)))
            for at, way in ways
            for event in STEPS
        ]
    return ()


def _is_there(at: Standing, before: Standing, wanted: Collection[str]) -> bool:
    return at.state in wanted and at.rejected == before.rejected
