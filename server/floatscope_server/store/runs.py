"""Runs and the position of each of their ranks."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, func, or_, select, update

from floatscope.protocol import strict_json
from floatscope.protocol.runinfo import RunInfo
from floatscope_server import tables
from floatscope_server.database import upsert
from floatscope_server.errors import RunNotFound
from floatscope_server.store import damage
from floatscope_server.store.warm_up import of_health

_RECIPE_KEYS = ("name", "fp8_format", "margin", "amax_history_len", "amax_compute_algo", "backend")
LISTED = [column for column in tables.run.c if column.name not in ("info_json", "bytes", "deleted")]
_HERE = tables.run.c.deleted.is_(None)
LOSS_CHARS = 25  # the longest float in JSON
_NAMES = tuple(column.name for column in LISTED)
ENDED = ("finished", "failed", "crashed")
LIVE = ("running", "stalled")
REBUILD: Mapping[str, Any] = {
    "revision": tables.run.c.revision + 1,
    "version": tables.run.c.version + 1,
    "baseline_arrivals": -1,  # less than any baseline has: the verdict is behind until it was made anew
}
"""Columns of a run whose verdict must be made anew from its stored batches, since its baseline is another
one now.
"""


@dataclass(frozen=True)
class RunRecord:
    """A run as the lists show it; ``info`` is loaded apart, since its tensor table may be long."""

    id: int
    run_id: str
    name: str
    project: str
    baseline: str | None
    status: str
    reason: str | None
    health: str
    summary: str
    cause: str | None
    onset_step: int | None
    first_step: int | None
    last_step: int | None
    last_loss: float | None
    created: float
    last_seen: float | None
    pace_s: float | None
    arrivals: int
    baseline_arrivals: int
    version: int
    revision: int
    described: int
    diagnosis_error: str | None
    recipe: Mapping[str, Any]
    judged_steps: int | None = None  # that the verdict rests on
    damaged: str | None = None  # what of it cannot be read, and is left out here

    def same_as(self, later: RunRecord | None) -> bool:
        """Whether nothing an engine must know of has changed since this record was read."""
        return later is not None and (later.id, later.version) == (self.id, self.version)


@dataclass(frozen=True)
class RankPosition:
    """Where one rank of a run stands: the seq expected next, its segment, its last stored step."""

    rank: int
    next_seq: int = 0
    segment: int = 0
    last_step: int | None = None
    last_seen: float | None = None


def find(c: Connection, run_id: str, *, lock: bool = False) -> RunRecord | None:
    """The run, or None. ``lock``: other writers of this run wait until the transaction ends."""
    query = select(*LISTED).where(tables.run.c.run_id == run_id, _HERE)
    row = c.execute(query.with_for_update() if lock else query).first()
    return None if row is None else record(row)


def found(c: Connection, run_ids: Collection[str]) -> dict[str, RunRecord]:
    """The runs of these ids that there are."""
    query = select(*LISTED).where(tables.run.c.run_id.in_(run_ids), _HERE)
    return {run.run_id: run for run in map(record, c.execute(query))} if run_ids else {}


def get(c: Connection, run_id: str, *, lock: bool = False) -> RunRecord:
    """The run; raises RunNotFound."""
    found = find(c, run_id, lock=lock)
    if found is None:
        raise RunNotFound(run_id)
    return found


def info(c: Connection, run: int) -> RunInfo:
    """The run's description as merged from all that was sent."""
    text = c.execute(select(tables.run.c.info_json).where(tables.run.c.id == run)).scalar_one()
    with damage.reading("description of the run"):
        return RunInfo.from_json(strict_json.loads(text))


def create(c: Connection, run_id: str, described: RunInfo, *, summary: str, now: float) -> bool:
    """Stores a new run; False if another request stored it first."""
    values = _described(run_id, described) | {
        "run_id": run_id,
        "status": "running",
        "health": "healthy",
        "summary": summary,
        "created": now,
        "arrivals": 0,
        "baseline_arrivals": 0,
        "version": 0,
        "revision": 0,
        "described": 0,
    }
    statement = upsert(c, tables.run).values(**values).on_conflict_do_nothing().returning(tables.run.c.id)
    return c.execute(statement).first() is not None


def describe(c: Connection, record: RunRecord, described: RunInfo) -> None:
    """Replaces the run's description (name, project, baseline, recipe, ...)."""
    values = _described(record.run_id, described) | {
        "described": record.described + 1,
        "version": record.version + 1,
    }
    c.execute(update(tables.run).where(tables.run.c.id == record.id).values(**values))


def change(c: Connection, run: int, values: Mapping[str, Any]) -> None:
    """Sets columns of the run."""
    columns = {name: value for name, value in values.items() if name != "last_loss"}
    if "last_loss" in values:
        # Of one length, so that SQLite writes the row in place: it may be long and changes with every batch.
        columns["last_loss_json"] = strict_json.dumps(values["last_loss"]).ljust(LOSS_CHARS)
    c.execute(update(tables.run).where(tables.run.c.id == run).values(columns))


def more_bytes(size: int) -> dict[str, Any]:
    """For ``change``: so many bytes of telemetry more are stored."""
    return {"bytes": tables.run.c.bytes + size}


def position(c: Connection, run: int, rank: int) -> RankPosition:
    """Where the rank stands; a rank that never sent anything stands at the beginning."""
    row = c.execute(select(tables.rank).where(tables.rank.c.run == run, tables.rank.c.rank == rank)).first()
    return RankPosition(rank) if row is None else _position(row)


def positions(c: Connection, run: int) -> tuple[RankPosition, ...]:
    """All ranks that sent something, ascending."""
    rows = c.execute(select(tables.rank).where(tables.rank.c.run == run).order_by(tables.rank.c.rank))
    return tuple(_position(row) for row in rows)


def place(c: Connection, run: int, at: RankPosition, *, rows: int) -> tuple[int, int]:
    """Stores where the rank stands after a batch of so many rows.

    Returns how many rows and how many batches it has that are in no chunk.
    """
    values = {
        "next_seq": at.next_seq,
        "segment": at.segment,
        "last_step": at.last_step,
        "last_seen": at.last_seen,
    }
    hot = tables.rank.c.hot_rows
    statement = (
        upsert(c, tables.rank)
        .values(run=run, rank=at.rank, hot_rows=rows, **values)
        .on_conflict_do_update(index_elements=["run", "rank"], set_={**values, "hot_rows": hot + rows})
        .returning(hot, tables.rank.c.chunked_seq)
    )
    hot_rows, chunked_seq = c.execute(statement).one()
    return hot_rows, at.next_seq - chunked_seq


def listed(
    c: Connection,
    *,
    project: str | None = None,
    status: Collection[str] = (),
    health: Collection[str] = (),
    before: int | None = None,
    limit: int,
) -> list[RunRecord]:
    """Runs, newest first, that match every filter given. health: see ``of_health``.  before: only those
    older than this id.
    """
    query = select(*LISTED).where(_HERE).order_by(tables.run.c.id.desc()).limit(limit)
    if project is not None:
        query = query.where(tables.run.c.project == project)
    if status:
        query = query.where(tables.run.c.status.in_(status))
    if health:
        query = query.where(of_health(health))
    if before is not None:
        query = query.where(tables.run.c.id < before)
    return [record(row) for row in c.execute(query)]


def silent(c: Connection) -> list[tuple[int, str, float, float | None]]:
    """(id, run_id, when it was last heard of, usual pace in s) of every run that counts as running."""
    heard = func.coalesce(tables.run.c.last_seen, tables.run.c.created)
    query = select(tables.run.c.id, tables.run.c.run_id, heard, tables.run.c.pace_s).where(
        tables.run.c.status == "running"
    )
    return [(row[0], row[1], row[2], row[3]) for row in c.execute(query)]


def stalled(c: Connection, run: int, *, silent_since: float) -> bool:
    """Marks a running run as stalled; False if it was heard of meanwhile, or ended."""
    heard = func.coalesce(tables.run.c.last_seen, tables.run.c.created)
    still = (tables.run.c.status == "running") & (heard == silent_since)
    statement = update(tables.run).where(tables.run.c.id == run, still).values(status="stalled")
    return c.execute(statement.returning(tables.run.c.id)).first() is not None


def count(c: Connection, *, project: str | None = None) -> int:
    query = select(func.count()).select_from(tables.run).where(_HERE)
    if project is not None:
        query = query.where(tables.run.c.project == project)
    return int(c.execute(query).scalar_one())


def with_baseline(c: Connection, baseline: str) -> list[RunRecord]:
    """Runs that name this one as their baseline."""
    return [record(row) for row in c.execute(select(*LISTED).where(tables.run.c.baseline == baseline, _HERE))]


def behind_baseline(c: Connection) -> list[str]:
    """Ids of runs whose verdict has not seen all that their baseline sent."""
    other = tables.run.alias("other")
    query = (
        select(tables.run.c.run_id)
        .outerjoin(other, other.c.run_id == tables.run.c.baseline)
        .where(_HERE, tables.run.c.baseline_arrivals < func.coalesce(other.c.arrivals, 0))
    )
    return list(c.execute(query).scalars())


def lock_with_dependents(c: Connection, run_id: str) -> None:
    """Locks the run and those compared with it, ascending, as all do who change several runs."""
    these = or_(tables.run.c.run_id == run_id, tables.run.c.baseline == run_id)
    c.execute(select(tables.run.c.id).where(these).order_by(tables.run.c.id).with_for_update()).all()


def restart_dependents(c: Connection, baseline: str) -> None:
    """Makes runs compared with this baseline forget what they know of it (it was deleted or made anew).

    They must have been locked with it.
    """
    c.execute(update(tables.run).where(tables.run.c.baseline == baseline).values(**REBUILD))


def add_series(c: Connection, run: int, rank: int, names: Collection[tuple[int, str]]) -> None:
    """Notes which scalars and statistics (kind, name) a rank has."""
    if names:
        rows = [{"run": run, "rank": rank, "kind": kind, "name": name} for kind, name in names]
        c.execute(upsert(c, tables.series).on_conflict_do_nothing(), rows)


def series(c: Connection, run: int) -> dict[tuple[int, str], tuple[int, ...]]:
    """(kind, name) of every scalar and statistic -> the ranks that have it, ascending."""
    found: dict[tuple[int, str], tuple[int, ...]] = {}
    query = select(tables.series).where(tables.series.c.run == run).order_by(tables.series.c.rank)
    for row in c.execute(query):
        key = (row.kind, row.name)
        found[key] = (*found.get(key, ()), row.rank)
    return found


def _described(run_id: str, described: RunInfo) -> dict[str, Any]:
    recipe = {
        k: v for k, v in described.recipe.items() if k in _RECIPE_KEYS and isinstance(v, str | int | float)
    }
    return {
        "name": described.name or run_id,
        "project": described.project or "default",
        "baseline": described.baseline,
        "recipe_json": strict_json.dumps(recipe),
        "info_json": strict_json.dumps(described.to_json()),
    }


def record(row: Row[Any]) -> RunRecord:
    """The run of a row of LISTED."""
    values: dict[str, Any] = dict(zip(_NAMES, row, strict=True))
    loss, recipe = values.pop("last_loss_json"), values.pop("recipe_json")
    try:
        values["last_loss"] = None if loss is None else strict_json.number(json.loads(loss), field="loss")
        values["recipe"] = dict(json.loads(recipe))
    except (ValueError, TypeError):  # a list of runs must not fail for one of them
        damaged = f"row of run {values['run_id']}"
        values |= {"last_loss": None, "recipe": {}, "damaged": damaged}
    return RunRecord(**values)


def _position(row: Row[Any]) -> RankPosition:
    return RankPosition(row.rank, row.next_seq, row.segment, row.last_step, row.last_seen)
