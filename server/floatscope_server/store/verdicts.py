"""The verdict of a run and the saved state of the engine that gave it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, select

from floatscope.protocol import strict_json
from floatscope_server import tables
from floatscope_server.codec import expand, squeeze
from floatscope_server.database import upsert
from floatscope_server.store import damage


@dataclass(frozen=True)
class SavedEngine:
    """An engine's state after the run's first ``arrivals`` batches and the baseline's first
    ``baseline_arrivals``.
    """

    revision: int
    arrivals: int
    baseline_arrivals: int
    state: bytes


def save(c: Connection, run: int, body: Mapping[str, Any], *, now: float) -> None:
    values = {"body_json": strict_json.dumps(body), "updated": now}
    statement = upsert(c, tables.verdict).values(run=run, **values)
    c.execute(statement.on_conflict_do_update(index_elements=["run"], set_=values))


def find(c: Connection, run: int) -> dict[str, Any] | None:
    """The verdict as JSON, non-finite numbers as strings; None before the first one. Raises Damaged."""
    text = c.execute(select(tables.verdict.c.body_json).where(tables.verdict.c.run == run)).scalar()
    if text is None:
        return None
    with damage.reading("verdict of the run"):
        return dict(json.loads(text))


def save_engine(c: Connection, run: int, saved: SavedEngine) -> None:
    values = {
        "revision": saved.revision,
        "arrivals": saved.arrivals,
        "baseline_arrivals": saved.baseline_arrivals,
        "state": squeeze(saved.state),
    }
    statement = upsert(c, tables.engine_state).values(run=run, **values)
    c.execute(statement.on_conflict_do_update(index_elements=["run"], set_=values))


def engine(c: Connection, run: int) -> SavedEngine | None:
    row = c.execute(select(tables.engine_state).where(tables.engine_state.c.run == run)).first()
    if row is None:
        return None
    return SavedEngine(row.revision, row.arrivals, row.baseline_arrivals, expand(bytes(row.state)))


def forget_engine(c: Connection, run: int) -> None:
    c.execute(delete(tables.engine_state).where(tables.engine_state.c.run == run))
