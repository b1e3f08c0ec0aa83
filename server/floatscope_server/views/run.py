"""Fills the view of a run's page from the store."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from floatscope.protocol.runinfo import RunInfo
from floatscope_dashboards.say import Say
from floatscope_dashboards.views import RunView
from floatscope_server.callers import Caller
from floatscope_server.derived import DERIVED, needs
from floatscope_server.errors import Damaged, Unreachable
from floatscope_server.store import batches, kinds, runs
from floatscope_server.store.runs import RunRecord
from floatscope_server.store.tensor_tables import TensorTables
from floatscope_server.store.tiles import Objects
from floatscope_server.store.warm import Warm
from floatscope_server.times import moment
from floatscope_server.views.kpis import kpis
from floatscope_server.views.pictures import pictures_view
from floatscope_server.views.run_curves import Curves, run_curves
from floatscope_server.views.run_facts import first_broken_step, run_facts
from floatscope_server.views.run_rows import rank, row
from floatscope_server.views.run_tracks import SPARK_POINTS

ALERTING = ("warning", "critical")
"""Health of a run whose finding goes on: numbers are compared with what was before it."""


def run_view(
    c: Connection,
    run: RunRecord,
    *,
    at: int | None,
    info: RunInfo,
    tables: TensorTables,
    verdict: dict[str, Any],
    version: str,
    say: Say,
    by: Caller,
    rules: Mapping[str, str],
    objects: Objects | None = None,
    warm: Warm | None = None,
) -> RunView:
    """The page of one run. info: its description. rules: title of every rule there is, by code."""
    described = info.to_json()
    seen = list(batches.glances(c, run.id, rank(c, run), points=SPARK_POINTS))
    curves = _curves(c, run, objects, warm)
    broken = first_broken_step(c, run, curves, objects, warm)
    stored = tuple(sorted({name for kind, name in runs.series(c, run.id) if kind == kinds.STAT}))
    derived = tuple(stat for stat in DERIVED if stat not in stored and needs(stat, stored))
    return RunView(
        row=row(c, run, verdict, objects, warm),
        info=described,
        verdict=verdict,
        kpis=kpis(
            curves,
            seen,
            onset=run.onset_step if run.health in ALERTING else None,
            first_broken=broken,
            ranks=len(runs.positions(c, run.id)),
            say=say,
        ),
        facts=run_facts(
            c,
            run,
            curves=curves,
            first_broken=broken,
            verdict=verdict,
            rules=rules,
            by=by,
            objects=objects,
            warm=warm,
        ),
        heat_stats=(*stored, *derived),
        at=at,
        now=moment(time.time()),
        version=version,
        pictures=pictures_view(
            *(c, run),
            at=at,
            info=described,
            tables=tables,
            verdict=verdict,
            objects=objects,
            warm=warm,
        ),
    )


def _curves(c: Connection, run: RunRecord, objects: Objects | None, warm: Warm | None) -> Curves:
    """None of them where what is stored cannot be read: it is logged there, and the headline says so."""
    try:
        return run_curves(c, run, objects, warm)
    except (Damaged, Unreachable):
        return {}
