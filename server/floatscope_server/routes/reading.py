"""What of a run a request reads: the span of steps, the rank, the tensors in their order."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from floatscope.protocol.names import split_tensor
from floatscope_server.derived import needs
from floatscope_server.errors import Refused
from floatscope_server.services import Services
from floatscope_server.store import kinds
from floatscope_server.store.raw import Source
from floatscope_server.store.runs import RunRecord
from floatscope_server.store.stretches import Span

ROLE_ORDER = ("input", "weight", "output", "grad_output", "grad_input", "grad_weight")


def source(c: Connection, services: Services, run: RunRecord, rank: int) -> Source:
    """Where the numbers of one rank are read."""
    return Source(c, run.id, rank, services.tensor_tables, services.objects, services.warm)


def span(run: RunRecord, first: int | None, last: int | None, segment: int | None) -> Span:
    """The span asked for; without an end, that of the run."""
    low = first if first is not None else (run.first_step or 0)
    high = last if last is not None else max(run.last_step or 0, low)
    if high < low:
        raise Refused("from", f"a step not above to={high}", low)
    return Span(low, high, segment)


def rank_of(asked: int | None, has: tuple[int, ...]) -> int:
    """The rank asked for, or the lowest that has it."""
    return asked if asked is not None else (has[0] if has else 0)


def stat_rank(known: dict[tuple[int, str], tuple[int, ...]], stat: str, asked: int | None) -> int:
    """The rank asked for, or the lowest that has the statistic or what it is derived from."""
    parts = needs(stat, stored_stats(known))
    return rank_of(asked, tuple(sorted({r for part in parts for r in known[kinds.STAT, part]})))


def stored_stats(known: dict[tuple[int, str], tuple[int, ...]]) -> tuple[str, ...]:
    """Every statistic of ``runs.series``."""
    return tuple(sorted(name for kind, name in known if kind == kinds.STAT))


def order(name: str, described: Any) -> tuple[int, str, int, str]:
    """Sorts tensors as the network uses them."""
    layer, role = split_tensor(name)
    place = ROLE_ORDER.index(role) if role in ROLE_ORDER else len(ROLE_ORDER)
    return (described.get("call_order", 2**31), layer, place, role)
