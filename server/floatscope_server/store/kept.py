"""What the retention of runs is decided on."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from floatscope_server import tables

_run = tables.run


@dataclass(frozen=True)
class Kept:
    """A run and what it takes. seen: when it last gave a sign of life (Unix seconds)."""

    run_id: str
    project: str
    status: str
    baseline: str | None
    seen: float
    bytes: int


def all_runs(c: Connection) -> list[Kept]:
    """Every run, oldest sign of life first."""
    seen = func.coalesce(_run.c.last_seen, _run.c.created)
    query = select(
        _run.c.run_id, _run.c.project, _run.c.status, _run.c.baseline, seen.label("seen"), _run.c.bytes
    ).where(_run.c.deleted.is_(None))
    return [Kept(*row) for row in c.execute(query.order_by(seen, _run.c.id))]
