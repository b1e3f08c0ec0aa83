"""Puts preflight's parts together. A part that raises or hangs becomes a check that says so."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from typing import Any, TypeVar

from floatscope.preflight.check import Check, Status
from floatscope.preflight.document import Preflight
from floatscope.preflight.facts import Facts, Wanted
from floatscope.preflight.time_limit import said, within

T = TypeVar("T")
Rows = Sequence[Mapping[str, Any]]
CheckPart = Callable[[Facts, Wanted], Sequence[Check]]

LIMIT_S = 120.0
"""Of all parts together: a GPU that hangs must not hang the job script that asks first."""


@dataclass(frozen=True)
class Parts:
    """What preflight is made of; a test hands in its own.

    checks: name -> pure checks of the facts.  casts, smoke: what tries something out; None leaves it out.
    recipes: of the machine, where no recipe was chosen.
    """

    gather: Callable[[], Facts]
    checks: Mapping[str, CheckPart] = field(default_factory=dict)
    recipes: Callable[[Facts], Mapping[str, tuple[Status, str]]] | None = None
    layers: Callable[[Facts, Wanted], Rows] | None = None
    casts: Callable[[Facts, Wanted], tuple[Mapping[str, Any], Sequence[Check]]] | None = None
    smoke: Callable[[Facts, Wanted], tuple[Rows, Sequence[Check]]] | None = None


def run_preflight(wanted: Wanted, parts: Parts, *, limit_s: float = LIMIT_S) -> Preflight:
    """Everything that ``parts`` can say about ``wanted``. Raises nothing of theirs."""
    desk = _Desk(limit_s)
    facts = desk.ask("facts", parts.gather, Facts())
    if not facts.python and "facts" in desk.failed:
        facts = replace(facts, failed={"facts": desk.failed["facts"]})
    for name, check in parts.checks.items():
        desk.checks += desk.ask(name, partial(_listed, check, facts, wanted), [])
    nothing: tuple[Mapping[str, Any], Sequence[Check]] = ({}, ())
    casts, about_casts = desk.ask("casts", _bound(parts.casts, facts, wanted), nothing)
    no_rows: tuple[Rows, Sequence[Check]] = ((), ())
    gemm, about_gemm = desk.ask("smoke", _bound(parts.smoke, facts, wanted), no_rows)
    no_layers: Rows = ()
    layers = desk.ask("layers", _bound(parts.layers, facts, wanted), no_layers)
    recipes: Mapping[str, tuple[Status, str]] = {}
    if parts.recipes is not None and not wanted.recipe:
        matrix = parts.recipes
        recipes = desk.ask("recipes", lambda: dict(matrix(facts)), {})
    return Preflight(
        made_at=now(),
        facts=facts,
        wanted=wanted,
        checks=(*desk.checks, *about_casts, *about_gemm, *desk.own),
        recipes=recipes,
        casts=casts,
        gemm=tuple(gemm),
        layers=tuple(layers),
        seconds=desk.seconds,
    )


def run_light(
    facts: Facts, wanted: Wanted, checks: Mapping[str, CheckPart], *, casts: Mapping[str, Any]
) -> Preflight:
    """What pure checks say of facts that are there, on the thread of the caller: for the agent."""
    found: list[Check] = []
    for name, check in checks.items():
        try:
            found += check(facts, wanted)
        except Exception as error:
            found.append(unanswered(name, said(error)))
    return Preflight(made_at=now(), facts=facts, wanted=wanted, checks=tuple(found), casts=casts, light=True)


def unanswered(part: str, why: str) -> Check:
    """The check that stands for a part that did not come back."""
    return Check(
        f"preflight.{part}",
        "preflight",
        "unknown",
        f"the part {part!r} of preflight gave no answer: {why}",
        "nothing of what this part looks at has been checked",
        "run preflight again; if it says the same, report it with this line",
    )


def now() -> str:
    """ISO 8601 in UTC, to the second."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class _Desk:
    """Asks part after part, each for as long as there is time left."""

    def __init__(self, limit_s: float) -> None:
        self._ends_at = time.monotonic() + limit_s
        self.checks: list[Check] = []
        self.own: list[Check] = []
        self.failed: dict[str, str] = {}
        self.seconds: dict[str, float] = {}

    def ask(self, part: str, work: Callable[[], T] | None, otherwise: T) -> T:
        """What the part says, or ``otherwise`` and a check of our own."""
        if work is None:
            return otherwise
        began = time.monotonic()
        outcome = within(self._ends_at - began, work)
        self.seconds[part] = round(time.monotonic() - began, 3)
        if outcome.error or outcome.value is None:
            self.failed[part] = outcome.error
            self.own.append(unanswered(part, outcome.error))
            return otherwise
        return outcome.value


def _listed(check: CheckPart, facts: Facts, wanted: Wanted) -> list[Check]:
    return list(check(facts, wanted))


def _bound(work: Callable[[Facts, Wanted], T] | None, facts: Facts, wanted: Wanted) -> Callable[[], T] | None:
    return None if work is None else lambda: work(facts, wanted)
