"""The numbers of a run: scalars, tensors, series, heat map, and the steps themselves as a log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query
from sqlalchemy import Connection
from starlette.responses import Response, StreamingResponse

from floatscope.protocol import strict_json
from floatscope.protocol.names import MAX_STEP, split_tensor
from floatscope_server import export
from floatscope_server.answers import Json
from floatscope_server.derived import DERIVED, needs
from floatscope_server.errors import Refused
from floatscope_server.reduce import MAX_COLUMNS, MAX_POINTS, HeatMap, summarise
from floatscope_server.routes import fields
from floatscope_server.routes.fields import FromStep, RankQuery, RunId, Segment, ToStep
from floatscope_server.services import Services, Use
from floatscope_server.store import batches, kinds, reads, runs
from floatscope_server.store.reads import Span
from floatscope_server.store.runs import RunRecord

router = APIRouter(tags=["series"])

DEFAULT_POINTS = 900
DEFAULT_COLUMNS = 250
MAX_NAMES = 64
ROLE_ORDER = ("input", "weight", "output", "grad_output", "grad_input", "grad_weight")

Points = Annotated[int, Query(ge=1, le=MAX_POINTS, description="At most this many bins.")]
Name = Annotated[str, Query(max_length=4096)]


@router.get("/runs/{run_id}/scalars", response_class=Json)
def scalars(
    run_id: RunId,
    services: Use,
    names: Annotated[str, Query(max_length=16_384, description="Comma-separated; default all.")] = "",
    from_step: FromStep = None,
    to_step: ToStep = None,
    points: Points = DEFAULT_POINTS,
    rank: RankQuery = None,
    segment: Segment = None,
) -> Response:
    """Scalars as column arrays; names the run does not log are left out. ``step``: where any bin begins."""
    with services.database.read() as c:
        run = runs.get(c, run_id)
        known = {
            name: ranks for (kind, name), ranks in runs.series(c, run.id).items() if kind == kinds.SCALARS
        }
        asked = fields.listed(names, field="names") or tuple(sorted(known))[:MAX_NAMES]
        if len(asked) > MAX_NAMES:
            raise Refused("names", f"at most {MAX_NAMES} names", f"{len(asked)}")
        wanted = [name for name in asked if name in known]
        span = _span(run, from_step, to_step, segment)
        found: dict[str, dict[str, list[Any]]] = {}
        for at in sorted({_rank(rank, known[name]) for name in wanted}):
            here = [name for name in wanted if _rank(rank, known[name]) == at]
            for name, (step, value) in reads.scalars(c, run.id, at, here, span).items():
                found[name] = summarise(step, value, points, first=span.first, last=span.last)
    steps = sorted({step for columns in found.values() for step in columns["step"]})
    return Json({"run_id": run_id, "step": steps, "series": {name: found[name] for name in wanted}})


@router.get("/runs/{run_id}/tensors", response_class=Json)
def tensors(run_id: RunId, services: Use) -> Response:
    """The run's tensors in the order of the network, with what is known of each and the statistics it has."""
    with services.database.read() as c:
        run = runs.get(c, run_id)
        described = runs.info(c, run.id).tensors
        stats_of = _stats_of(c, services, run)
    names = sorted({*described, *stats_of}, key=lambda name: _order(name, described.get(name, {})))
    items = []
    for name in names:
        layer, role = split_tensor(name)
        stored = stats_of.get(name, [])
        derived = [stat for stat in DERIVED if stat not in stored and needs(stat, stored)]
        row = {
            **described.get(name, {}),
            "name": name,
            "layer": layer,
            "role": role,
            "stats": sorted([*stored, *derived]),
        }
        items.append(row)
    return Json({"items": items, "next_cursor": None})


@router.get("/runs/{run_id}/series", response_class=Json)
def series(
    run_id: RunId,
    services: Use,
    tensor: Name,
    stat: Name,
    from_step: FromStep = None,
    to_step: ToStep = None,
    points: Points = DEFAULT_POINTS,
    rank: RankQuery = None,
    segment: Segment = None,
) -> Response:
    """One statistic of one tensor as column arrays."""
    with services.database.read() as c:
        run = runs.get(c, run_id)
        span = _span(run, from_step, to_step, segment)
        at = _stat_rank(c, run, stat, rank)
        step, value = reads.series(
            c,
            run.id,
            at,
            fields.name(stat, field="stat"),
            fields.name(tensor, field="tensor"),
            span,
            tensor_tables=services.tensor_tables,
            tensors=runs.info(c, run.id).tensors,
        )
    columns = summarise(step, value, points, first=span.first, last=span.last)
    return Json({"run_id": run_id, "tensor": tensor, "stat": stat, "rank": at, **columns})


@router.get("/runs/{run_id}/heatmap", response_class=Json)
def heatmap(
    run_id: RunId,
    services: Use,
    stat: Name,
    role: Annotated[str | None, Query(max_length=64)] = None,
    from_step: FromStep = None,
    to_step: ToStep = None,
    columns: Annotated[int, Query(ge=1, le=MAX_COLUMNS)] = DEFAULT_COLUMNS,
    rank: RankQuery = None,
    segment: Segment = None,
) -> Response:
    """One statistic of all tensors: the worst value of each tensor in each bin of steps."""
    with services.database.read() as c:
        run = runs.get(c, run_id)
        span = _span(run, from_step, to_step, segment)
        described = runs.info(c, run.id).tensors
        at = _stat_rank(c, run, stat, rank)
        names = reads.tensor_names(c, run.id, at, span, tensor_tables=services.tensor_tables)
        shown = [name for name in names if role is None or split_tensor(name)[1] == role]
        shown.sort(key=lambda name: _order(name, described.get(name, {})))
        heat = HeatMap(stat, shown, span.first, span.last, columns)
        tables = services.tensor_tables
        wanted = fields.name(stat, field="stat")
        for part in reads.stat_blocks(c, run.id, at, wanted, span, tensor_tables=tables, tensors=described):
            heat.add(*part)
    return Json(heat.to_json())


@router.get("/runs/{run_id}/steps", response_class=StreamingResponse)
def steps(
    run_id: RunId,
    services: Use,
    from_step: FromStep = None,
    to_step: ToStep = None,
    rank: Annotated[str | None, Query(pattern="^(all|[0-9]{1,7})$", description="A rank, or all.")] = None,
    segment: Segment = None,
) -> Response:
    """The steps as a floatscope log (JSONL): first a line that describes the run, then one line a step."""
    with services.database.read() as c:
        run = runs.get(c, run_id)
        known = [at.rank for at in runs.positions(c, run.id)]
        ranks = known if rank == "all" else [int(rank)] if rank is not None else known[:1]
        head = runs.info(c, run.id).to_json()
    ended = {} if run.status in ("running", "stalled") else {"status": run.status, "reason": run.reason}
    span = Span(from_step or 0, MAX_STEP if to_step is None else to_step, segment)

    def lines() -> Iterator[str]:
        yield strict_json.dumps({"run": head | ended}).encode("utf-8", "backslashreplace").decode() + "\n"
        for row in export.rows(services.database, run.id, ranks, span, tensor_tables=services.tensor_tables):
            yield strict_json.dumps(row) + "\n"

    name = f'attachment; filename="{run_id}.jsonl"'
    return StreamingResponse(
        export.in_pieces(lines()), media_type="application/jsonl", headers={"Content-Disposition": name}
    )


def _span(run: RunRecord, first: int | None, last: int | None, segment: int | None) -> Span:
    """The span asked for; without an end, that of the run."""
    low = first if first is not None else (run.first_step or 0)
    high = last if last is not None else max(run.last_step or 0, low)
    if high < low:
        raise Refused("from", f"a step not above to={high}", low)
    return Span(low, high, segment)


def _rank(asked: int | None, has: tuple[int, ...]) -> int:
    return asked if asked is not None else (has[0] if has else 0)


def _stat_rank(c: Connection, run: RunRecord, stat: str, asked: int | None) -> int:
    """The rank asked for, or the lowest that has the statistic or what it is derived from."""
    known = runs.series(c, run.id)
    stored = tuple(name for kind, name in known if kind == kinds.STAT)
    return _rank(asked, tuple(sorted({r for part in needs(stat, stored) for r in known[kinds.STAT, part]})))


def _stats_of(c: Connection, services: Services, run: RunRecord) -> dict[str, list[str]]:
    """Tensor -> its stored statistics, as the newest batch with statistics of each rank has them."""
    stats = batches.stat_names(c, run.id)
    out: dict[str, set[str]] = {}
    for at in runs.positions(c, run.id):
        key = batches.newest_with_tensors(c, run.id, at.rank)
        if key is not None:
            batch = batches.load(c, run.id, key, tensor_tables=services.tensor_tables, stats=stats)
            for stat, present in batch.stats_present.items():
                for s in np.flatnonzero(present.any(axis=0)):
                    out.setdefault(batch.tensor_names[s], set()).add(stat)
    return {name: sorted(found) for name, found in out.items()}


def _order(name: str, described: Any) -> tuple[int, str, int, str]:
    layer, role = split_tensor(name)
    place = ROLE_ORDER.index(role) if role in ROLE_ORDER else len(ROLE_ORDER)
    return (described.get("call_order", 2**31), layer, place, role)
