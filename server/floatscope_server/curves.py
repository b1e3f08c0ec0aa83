"""The loss as a short curve, for a line of the overview and for a message."""

from __future__ import annotations

import math

from sqlalchemy import Connection

from floatscope.protocol.names import MAX_STEP
from floatscope_server.errors import Damaged, Unreachable
from floatscope_server.levels import Level
from floatscope_server.store import series_reads
from floatscope_server.store.raw import Source
from floatscope_server.store.stretches import Span
from floatscope_server.store.tensor_tables import TensorTables
from floatscope_server.store.tiles import Objects
from floatscope_server.store.warm import Warm

Curve = list[tuple[int, float | None]]


def loss_curve_if_readable(c: Connection, run: int, rank: int, *, points: int) -> Curve:
    """``loss_curve`` for who can do without it: nothing where what is stored cannot be read, which is logged
    there.
    """
    try:
        return loss_curve(c, run, rank, points=points)
    except (Damaged, Unreachable):
        return []


def loss_curve(
    c: Connection,
    run: int,
    rank: int,
    *,
    points: int,
    objects: Objects | None = None,
    warm: Warm | None = None,
) -> Curve:
    """(step, loss) in order, at most ``points``; None is a gap; a stretch with a NaN or Inf shows that.

    Raises Damaged or Unreachable.
    """
    seen = series_reads.view(Source(c, run, rank, TensorTables(), objects, warm), Span(0, MAX_STEP))
    return curve_of(series_reads.scalars(seen, ["loss"], points)["loss"], seen.first)


def curve_of(level: Level, first: int) -> Curve:
    """The curve of a summarised scalar whose steps begin at ``first``."""
    out: Curve = []
    if not len(level.bins) or level.last is None:
        return out
    values = zip(level.nan[0], level.inf[0], level.last[0], strict=True)
    value_of = dict(zip(level.bins.tolist(), values, strict=True))
    steps = level.bins.tolist() if level.width == 1 else range(int(level.bins[0]), int(level.bins[-1]) + 1)
    for at in steps:
        begin = max(at * level.width, first)
        if at not in value_of:
            out.append((begin, None))
            continue
        nan, inf, value = value_of[at]
        out.append((begin, math.nan if nan else math.inf if inf else float(value)))
    return out
