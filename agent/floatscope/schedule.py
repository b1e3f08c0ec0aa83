"""Which steps carry the statistics that read whole tensors, and of which layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from floatscope.look import EXTRA, GLANCE, SAMPLE, Look

CLOSER_LOOK_STEPS = 3  # steps measured in full after the loss turned non-finite
MOST_AHEAD = 10_000  # steps for which a wish holds; it is renewed while there is a reason
MOST_SUSPECTS = 64  # layers looked at in full at a time; a server that names more means all of them


@dataclass(frozen=True)
class _Wish:
    """A closer look that was asked for. look: of which layers."""

    every: int
    until: int
    look: Look


class Schedule:
    """Every n-th step, and every step while something is wrong or the diagnosis asks for a closer look.

    settings: ``{"stats_every": 1, "until_step": 4000}`` as servers send them in their answers; with
    ``"layers": [...]`` the closer look is at those layers only, and the usual one goes on beside it.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._wish: _Wish | None = None  # one reference: others set it while the loop reads it
        self._closer_until = -1
        self._ease = 1
        self._step = 0

    def look(self, step: int) -> Look:
        """How closely this step is looked at."""
        self._step = step
        wish = self._wish
        asked = GLANCE
        if wish is not None and step <= wish.until and step % wish.every == 0:
            asked = wish.look
        is_usual = step % (self._every * self._ease) == 0
        is_sampled = is_usual or step <= self._closer_until or asked.is_sampled
        if asked.suspects:
            return Look(is_sampled, asked.suspects, is_extra=not is_usual)
        return SAMPLE if is_usual else EXTRA if is_sampled else GLANCE

    def ask(self, settings: Mapping[str, Any]) -> None:
        """Takes a wish; empty settings end the last one, and anything that is not one is passed over."""
        if not settings:
            self._wish = None
            return
        every, until = settings.get("stats_every"), settings.get("until_step")
        if type(every) is int and every >= 1 and type(until) is int:
            suspects = _names(settings.get("layers"))
            until = min(until, self._step + MOST_AHEAD)
            self._wish = _Wish(every, until, Look(suspects=suspects) if suspects else SAMPLE)

    def ease(self, factor: int) -> None:
        """Makes the usual look rarer by this factor, 1 and more: what is measured cannot be delivered."""
        self._ease = factor

    def look_closer(self, step: int) -> None:
        """Measures the next few steps in full."""
        self._closer_until = step + CLOSER_LOOK_STEPS

    def go_back(self, step: int) -> None:
        """The loop goes on at this earlier step: what was wrong later is no reason to measure up to there."""
        self._wish = None
        self.look_closer(step)


def _names(value: object) -> frozenset[str]:
    """The layers of a list; empty, which means all of them, where it is no list or too long."""
    if not isinstance(value, list) or len(value) > MOST_SUSPECTS:
        return frozenset()
    return frozenset(layer for layer in value if isinstance(layer, str))
