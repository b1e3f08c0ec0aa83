"""The loss as a short curve, for a line of the overview and for a message."""

from __future__ import annotations

import numpy as np
from sqlalchemy import Connection

from floatscope.protocol.names import MAX_STEP
from floatscope_server.store import batches, reads
from floatscope_server.store.reads import Span

READ_WHOLE_BATCHES = 256  # up to here every step is read; beyond, the last loss of evenly spaced batches


def loss_curve(c: Connection, run: int, rank: int, *, points: int) -> list[tuple[int, float | None]]:
    """(step, loss) in order, at most ``points``; None is a gap; a stretch with a NaN or Inf shows that."""
    if batches.count(c, run, rank) > READ_WHOLE_BATCHES:
        rows = batches.glances(c, run, rank, points=points - 1)
        return [(first, seen.get("loss")) for first, _last, seen in rows]
    step, loss = reads.scalars(c, run, rank, ["loss"], Span(0, MAX_STEP))["loss"]
    if len(step) <= points:
        return list(zip(step.tolist(), loss.tolist(), strict=True))
    width = -(-(int(step[-1]) - int(step[0]) + 1) // points)
    which = (step - step[0]) // width
    out: list[tuple[int, float | None]] = []
    for at in range(int(which[-1]) + 1):
        inside = loss[which == at]
        odd = inside[~np.isfinite(inside)]
        value = None if not len(inside) else float(odd[0] if len(odd) else inside[-1])
        out.append((int(step[0]) + at * width, value))
    return out
