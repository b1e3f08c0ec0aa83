"""Compares two stored runs: reads what the engine's comparison needs of each, asks it, and remembers the
answer until either run grows.

Losses are read whole; statistics of tensors, of which a long run has hundreds of millions, up to
``MAX_VALUES`` of each run. Where there are more, batches spread evenly over the run are read, and the answer
says how many steps that were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from floatscope_diagnostics.compare.casts import LossyCast, lossy_casts
from floatscope_diagnostics.compare.document import document, with_go
from floatscope_diagnostics.compare.drawing import Range, drawn
from floatscope_diagnostics.compare.go import decide
from floatscope_diagnostics.compare.health import Health, health_of
from floatscope_diagnostics.compare.judge import DEFAULT_MARGIN_NATS, Comparison, Settings, compare
from floatscope_diagnostics.compare.limits import BadLimits, Limits
from floatscope_diagnostics.compare.pairing import NotComparable
from floatscope_diagnostics.compare.side import Side
from floatscope_diagnostics.compare.tensors import TensorParting, compare_tensors
from floatscope_diagnostics.verdict import plain_object
from floatscope_server.asked_limits import AskedLimits
from floatscope_server.compared_side import Extent, LossesOf, tensors_of
from floatscope_server.errors import Damaged, Problem
from floatscope_server.services import Services
from floatscope_server.store import runs, verdicts
from floatscope_server.store.runs import RunRecord

AT_ONCE_VALUES = 1_000_000
"""Of both runs, that a page waits for: about a third of a second. More are asked for once it stands."""
MAX_VALUES = 4_000_000
NOT_READ = "not looked at yet"
_KEEP_BYTES_OF_DOCUMENT = 16_384


@dataclass(frozen=True)
class Asked:
    """first, last: steps to compare, None for all. margin: nats that matter. values: statistics of tensors to
    read of each run at most; 0 for none.
    """

    first: int | None = None
    last: int | None = None
    margin: float = DEFAULT_MARGIN_NATS
    values: int = MAX_VALUES

    @classmethod
    def by(cls, limits: AskedLimits, first: int | None, last: int | None, values: int = MAX_VALUES) -> Asked:
        """With the margin of the limits, if they have one."""
        return cls(first, last, DEFAULT_MARGIN_NATS if limits.margin is None else limits.margin, values)


@dataclass(frozen=True, eq=False)
class TensorRows:
    """Steps of each run that carry statistics, those of which they were read, and tensors found there."""

    read: tuple[int, int]
    logged: tuple[int, int]
    tensors: tuple[int, int]

    @property
    def complete(self) -> bool:
        return self.read == self.logged


@dataclass(frozen=True, eq=False)
class Seen:
    """What statistics of tensors say: where the runs part, which casts of the run lose too much at its end.

    rows: None while none were looked at.
    """

    parting: TensorParting
    casts: tuple[LossyCast, ...] | None
    rows: TensorRows | None


@dataclass(frozen=True, eq=False)
class Compared:
    """rows: None while no tensors were looked at."""

    found: Comparison
    rows: TensorRows | None

    def document(self, go: Mapping[str, Any]) -> dict[str, Any]:
        """As ``floatscope compare --json``, with the decision."""
        made = document(self.found)
        for place, side in enumerate(("run", "baseline")):  # the sides are remembered without their tensors
            described = (self.found.run, self.found.base)[place].run.tensors
            made[side]["tensors"] = len(described) if self.rows is None else self.rows.tensors[place]
        return with_go(made, go)

    def series(self, *, points: int, shown: Range | None = None) -> dict[str, Any]:
        """What is drawn."""
        c = self.found
        return drawn(c.pairs, c.run, c.base, confidence=c.settings.confidence, points=points, shown=shown)


class CannotDecide(Problem):
    """The limits do not fit the two runs."""

    def __init__(self, why: str) -> None:
        super().__init__(
            422,
            "Limits that cannot be used",
            why,
            field="preset",
            expected="limits that the losses of these runs can be held against",
            hint="choose another preset or give margin in nats",
        )


class CannotCompare(Problem):
    """The two runs have nothing that could be compared."""

    def __init__(self, why: str, *, field: str = "baseline") -> None:
        super().__init__(
            422,
            "Nothing to compare",
            why,
            field=field,
            expected="two runs that log loss on the same steps",
            hint="choose another baseline or another range of steps",
        )


def compared(c: Connection, services: Services, run: RunRecord, base: RunRecord, asked: Asked) -> Compared:
    """The comparison. Raises CannotCompare, Damaged or Unreachable."""
    known = remembered(services, run, base, asked)
    if known is not None:
        return known
    with services.warm.alone(("comparing", *state(run), *state(base))):
        return remembered(services, run, base, asked) or _made(c, services, run, base, asked)


def _made(c: Connection, services: Services, run: RunRecord, base: RunRecord, asked: Asked) -> Compared:
    extent = Extent(asked.first, asked.last)
    own, other = (_losses(c, services, side, extent) for side in (run, base))
    try:
        found = compare(own, other, Settings(margin=asked.margin))
    except NotComparable as error:
        raise CannotCompare(str(error)) from error
    seen = _tensors(c, services, (run, base), found, asked)
    made = Compared(replace(found, tensors=seen.parting, casts=seen.casts), seen.rows)
    services.warm.keep(_key(run, base, asked), made, _size(made))
    return made


def decided(
    c: Connection,
    services: Services,
    run: RunRecord,
    base: RunRecord,
    asked: Asked,
    *,
    found: Compared,
    limits: Limits,
) -> dict[str, Any]:
    """Go, no-go or not yet, by these limits, as ``go`` of the document. Raises CannotDecide."""
    health = (_health(c, run), _health(c, base))
    key = ("go", *state(run), *state(base), asked, found.rows is None, limits, health)
    known: dict[str, Any] | None = services.warm.get(key)
    if known is None:
        try:
            known = plain_object(decide(found.found, limits, health=health).to_json())
        except BadLimits as error:
            raise CannotDecide(str(error)) from error
        services.warm.keep(key, known, _KEEP_BYTES_OF_DOCUMENT)
    return known


def _health(c: Connection, run: RunRecord) -> Health | None:
    """What the diagnosis says of the run; None where it said nothing or cannot be read."""
    try:
        return health_of(verdicts.find(c, run.id))
    except Damaged:
        return None  # the run's own page says so; here it was not judged


def remembered(services: Services, run: RunRecord, base: RunRecord, asked: Asked) -> Compared | None:
    """The comparison if it was made since either run grew."""
    known: Compared | None = services.warm.get(_key(run, base, asked))
    return known


def _losses(c: Connection, services: Services, run: RunRecord, extent: Extent) -> Side:
    key = ("compared-side", *state(run), extent)
    known: Side | None = services.warm.get(key)
    if known is not None:
        return known
    side = LossesOf(c, services, run).side(extent)
    if side is None:
        between = "" if extent == Extent() else " between these steps"
        raise CannotCompare(
            f"run {run.run_id!r} logs no loss{between}; a comparison needs step and loss",
            field="run",
        )
    size = 40 * len(side.step) + 16 * sum(map(len, side.traces.values()))
    services.warm.keep(key, side, size + _KEEP_BYTES_OF_DOCUMENT)
    return side


def _tensors(
    c: Connection, services: Services, pair: tuple[RunRecord, RunRecord], found: Comparison, asked: Asked
) -> Seen:
    """What the tensors say; remembered apart, since it does not depend on the margin."""
    if not asked.values:
        return Seen(TensorParting(why_not=NOT_READ), None, None)
    run, base = pair
    key = ("compared-tensors", *state(run), *state(base), asked.first, asked.last, asked.values)
    known: Seen | None = services.warm.get(key)
    if known is not None:
        return known
    read, logged, tensors, sides = [], [], [], []
    for record, side in zip(pair, (found.run, found.base), strict=True):
        seen = tensors_of(c, services, record, Extent(asked.first, asked.last), most_values=asked.values)
        sides.append(replace(side, tensors=seen.log))
        read.append(seen.read)
        logged.append(seen.logged)
        tensors.append(len(seen.log.names))
    pairs = found.pairs
    parting = compare_tensors(sides[0], sides[1], paired=pairs.paired, other_data=pairs.other_data)
    casts = lossy_casts(sides[0].run, sides[0].tensors)
    made = Seen(parting, casts, TensorRows(_two(read), _two(logged), _two(tensors)))
    services.warm.keep(key, made, _KEEP_BYTES_OF_DOCUMENT)
    return made


def _two(values: Sequence[int]) -> tuple[int, int]:
    first, second = values
    return first, second


def state(run: RunRecord) -> tuple[int, ...]:
    """Changes with whatever an answer about the run is made from."""
    return (run.id, run.arrivals, run.revision, run.described)


def _key(run: RunRecord, base: RunRecord, asked: Asked) -> tuple[Any, ...]:
    return ("compared", *state(run), *state(base), asked)


def _size(made: Compared) -> int:
    """The sides are remembered by themselves."""
    pairs = made.found.pairs
    return 18 * len(pairs.step) + 64 * len(pairs.other_data) + _KEEP_BYTES_OF_DOCUMENT


def both(c: Connection, run_id: str, baseline_id: str) -> tuple[RunRecord, RunRecord]:
    """The two runs; raises RunNotFound."""
    return runs.get(c, run_id), runs.get(c, baseline_id)
