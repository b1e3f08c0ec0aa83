"""Evaluations that both of two runs log: values of the last step that both have."""

from __future__ import annotations

import math

from sqlalchemy import Connection

from floatscope_dashboards.compare_view import EvalPair
from floatscope_diagnostics.compare.traces import on_common_steps
from floatscope_server.compared_side import Extent, LossesOf
from floatscope_server.services import Services
from floatscope_server.store import kinds, runs
from floatscope_server.store.runs import RunRecord
from floatscope_server.store.stretches import Span

BEGIN = ("eval_", "eval/", "eval.", "val_", "val/", "benchmark/")
JUDGED = ("eval_loss",)
"""What the decision looks at itself."""
MOST = 24


def eval_pairs(
    c: Connection, services: Services, own: RunRecord, other: RunRecord, span: Span
) -> tuple[EvalPair, ...]:
    """Scalars that are named like evaluations, by name."""
    names = sorted(_names(c, own) & _names(c, other))[:MOST]
    if not names:
        return ()
    extent = Extent(span.first, span.last)
    values = [LossesOf(c, services, run).scalars(names, extent) for run in (own, other)]
    found = []
    for name in names:
        step, mine, theirs = on_common_steps(values[0][name].finite(), values[1][name].finite())
        if len(step) and math.isfinite(mine[-1]) and math.isfinite(theirs[-1]):
            found.append(EvalPair(name, int(step[-1]), float(mine[-1]), float(theirs[-1])))
    return tuple(found)


def _names(c: Connection, run: RunRecord) -> set[str]:
    logged = {name for kind, name in runs.series(c, run.id) if kind == kinds.SCALARS}
    return {name for name in logged if name.lower().startswith(BEGIN) and name not in JUDGED}
