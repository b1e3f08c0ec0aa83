"""Which steps carry the statistics that read whole tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CLOSER_LOOK_STEPS = 3  # steps measured in full after the loss turned non-finite


class Schedule:
    """Every n-th step, and every step while something is wrong or the server asks for a closer look.

    settings: ``{"stats_every": 1, "until_step": 4000}`` as servers send them in their answers.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._asked_every: int | None = None
        self._asked_until = -1
        self._closer_until = -1

    def is_sampled(self, step: int) -> bool:
        """Whether this step is measured in full."""
        if step <= self._closer_until or step % self._every == 0:
            return True
        return self._asked_every is not None and step <= self._asked_until and step % self._asked_every == 0

    def ask(self, settings: Mapping[str, Any]) -> None:
        """Takes a server's wish; anything that is not one is passed over."""
        every, until = settings.get("stats_every"), settings.get("until_step")
        if type(every) is int and every >= 1 and type(until) is int:
            self._asked_until, self._asked_every = until, every

    def look_closer(self, step: int) -> None:
        """Measures the next few steps in full."""
        self._closer_until = step + CLOSER_LOOK_STEPS
