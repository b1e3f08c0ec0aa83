"""Which steps carry the statistics that read whole tensors, and of which layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from floatscope.look import GLANCE, SAMPLE, Look

CLOSER_LOOK_STEPS = 3  # steps measured in full after the loss turned non-finite
MOST_SUSPECTS = 64  # layers looked at in full at a time; a server that names more means all of them


class Schedule:
    """Every n-th step, and every step while something is wrong or the server asks for a closer look.

    settings: ``{"stats_every": 1, "until_step": 4000}`` as servers send them in their answers; with
    ``"layers": [...]`` the closer look is at those layers only, and the usual one goes on beside it.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._asked_every: int | None = None
        self._asked_until = -1
        self._asked_layers: Look | None = None
        self._closer_until = -1
        self._ease = 1

    def look(self, step: int) -> Look:
        """How closely this step is looked at."""
        is_asked = (
            self._asked_every is not None and step <= self._asked_until and step % self._asked_every == 0
        )
        if step <= self._closer_until or step % (self._every * self._ease) == 0:
            is_sampled = True
        else:
            is_sampled = is_asked and self._asked_layers is None
        if is_asked and self._asked_layers is not None:
            return Look(is_sampled, self._asked_layers.suspects)
        return SAMPLE if is_sampled else GLANCE

    def ask(self, settings: Mapping[str, Any]) -> None:
        """Takes a server's wish; anything that is not one is passed over."""
        every, until = settings.get("stats_every"), settings.get("until_step")
        if type(every) is int and every >= 1 and type(until) is int:
            suspects = _names(settings.get("layers"))
            self._asked_layers = Look(suspects=suspects) if suspects else None
            self._asked_until, self._asked_every = until, every

    def ease(self, factor: int) -> None:
        """Makes the usual look rarer by this factor, 1 and more: what is measured cannot be delivered."""
        self._ease = factor

    def look_closer(self, step: int) -> None:
        """Measures the next few steps in full."""
        self._closer_until = step + CLOSER_LOOK_STEPS


def _names(value: object) -> frozenset[str]:
    """The layers of a list; empty, which means all of them, where it is no list or too long."""
    if not isinstance(value, list) or len(value) > MOST_SUSPECTS:
        return frozenset()
    return frozenset(layer for layer in value if isinstance(layer, str))
