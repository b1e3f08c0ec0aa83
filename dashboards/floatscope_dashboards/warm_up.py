"""When a run that goes on is too young to be called healthy: its drift cannot be judged yet."""

from __future__ import annotations

from typing import Protocol

WARM_UP_STEPS = 64
"""Steps that must have been judged."""


class Aging(Protocol):
    """What is asked of a run. judged_steps: those its verdict rests on, None where that is not known."""

    @property
    def status(self) -> str: ...
    @property
    def health(self) -> str: ...
    @property
    def cause(self) -> str | None: ...
    @property
    def judged_steps(self) -> int | None: ...
    @property
    def first_step(self) -> int | None: ...
    @property
    def last_step(self) -> int | None: ...


def is_warming_up(run: Aging) -> bool:
    """Whether the run goes on, nothing was found in it, and less than WARM_UP_STEPS of it were judged.

    The store says the same in SQL (floatscope_server.store.run_lists).
    """
    if run.status != "running" or run.health != "healthy" or run.cause is not None:
        return False
    if run.judged_steps is not None:
        return run.judged_steps < WARM_UP_STEPS
    if run.first_step is None or run.last_step is None:
        return True
    return run.last_step - run.first_step + 1 < WARM_UP_STEPS


def health_of(run: Aging) -> str:
    """The status of its verdict, "warming_up" where it is too early to say "healthy"."""
    return "warming_up" if is_warming_up(run) else run.health
