"""Fills the pictures of a run's page from the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from floatscope.protocol.names import MAX_STEP
from floatscope_dashboards.findings import open_findings, read_findings
from floatscope_dashboards.pictures_view import PicturesView, RanksView, RulerView
from floatscope_server.errors import Damaged, Unreachable
from floatscope_server.rank_maps import NAMES
from floatscope_server.store import kinds, runs
from floatscope_server.store.raw import Source
from floatscope_server.store.runs import RunRecord
from floatscope_server.store.tensor_tables import TensorTables
from floatscope_server.store.tiles import Objects
from floatscope_server.store.warm import Warm
from floatscope_server.views.nan_spread import path_view
from floatscope_server.views.ruler import ruler_view

Known = dict[tuple[int, str], tuple[int, ...]]


def pictures_view(
    c: Connection,
    run: RunRecord,
    *,
    at: int | None,
    info: dict[str, Any],
    tables: TensorTables,
    verdict: dict[str, Any],
    objects: Objects | None = None,
    warm: Warm | None = None,
) -> PicturesView:
    """The pictures of one run. at: the step the reader asked for."""
    known = runs.series(c, run.id)
    ruler = step_view(c, run, at=at, info=info, known=known, tables=tables, objects=objects, warm=warm,
                      kept=told_tensors(verdict))  # fmt: skip
    try:
        path = path_view(c, run, info=info, verdict=verdict, known=known, tables=tables,
                         objects=objects, warm=warm)  # fmt: skip
    except (Damaged, Unreachable):
        path = None  # logged where it was met; the page does without
    names = tuple(name for name in NAMES if (kinds.SCALARS, name) in known)
    return PicturesView(
        step=ruler.step,
        ruler=ruler,
        path=path,
        ranks=RanksView(names, len(runs.positions(c, run.id))),
    )


def told_tensors(verdict: dict[str, Any]) -> tuple[str, ...]:
    """The tensor of the finding that the page tells: the ruler shows it beside those that are worst off."""
    findings = read_findings(verdict)
    lead = next(iter(open_findings(findings)), next(iter(findings), None))
    return (lead.tensor,) if lead is not None and lead.tensor else ()


def step_view(
    c: Connection,
    run: RunRecord,
    *,
    at: int | None,
    info: dict[str, Any],
    known: Known,
    tables: TensorTables,
    objects: Objects | None,
    warm: Warm | None,
    everything: bool = False,
    kept: Sequence[str] = (),
) -> RulerView:
    """The ruler at a step; without one at the onset of the worst finding, else at the last step."""
    stored = tuple(sorted(name for kind, name in known if kind == kinds.STAT))
    asked = at if at is not None else run.onset_step if run.onset_step is not None else run.last_step
    ranks = known.get((kinds.STAT, "amax"), ())
    if not ranks or asked is None:
        return RulerView(asked, None)
    source = Source(c, run.id, ranks[0], tables, objects, warm)
    described = info.get("tensors")
    try:
        return ruler_view(
            source,
            at=min(asked, MAX_STEP),
            asked=asked,
            stored=stored,
            tensors=described if isinstance(described, dict) else {},
            everything=everything,
            kept=kept,
        )
    except (Damaged, Unreachable):
        return RulerView(asked, None)
