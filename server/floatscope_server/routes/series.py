"""The numbers of a run over steps: scalars, series, heat map, and the steps themselves as a log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from floatscope.protocol import strict_json
from floatscope.protocol.names import MAX_STEP, split_tensor
from floatscope_server import caching, export
from floatscope_server.answers import Json, Numbers
from floatscope_server.errors import Refused, Unreachable
from floatscope_server.reduce import MAX_COLUMNS, MAX_POINTS, HeatMap
from floatscope_server.reduce import columns as columns_of
from floatscope_server.routes import fields, reading
from floatscope_server.routes.fields import FromStep, RankQuery, RunId, Segment, ToStep
from floatscope_server.services import Use
from floatscope_server.shadow_scale import SHADOW
from floatscope_server.store import heat_reads, kinds, runs, series_reads, shadow_reads
from floatscope_server.store.stretches import Span

router = APIRouter(tags=["series"])

DEFAULT_POINTS = 900
DEFAULT_COLUMNS = 250
MAX_NAMES = 64

Points = Annotated[int, Query(ge=1, le=MAX_POINTS, description="At most this many bins.")]
Name = Annotated[str, Query(max_length=4096)]


@router.get("/runs/{run_id}/scalars", response_class=Json)
def scalars(
    request: Request,
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
        headers = caching.of_run(request, run)
        known = {
            name: ranks for (kind, name), ranks in runs.series(c, run.id).items() if kind == kinds.SCALARS
        }
        asked = fields.listed(names, field="names") or tuple(sorted(known))[:MAX_NAMES]
        if len(asked) > MAX_NAMES:
            raise Refused("names", f"at most {MAX_NAMES} names", f"{len(asked)}")
        wanted = [name for name in asked if name in known]
        span = reading.span(run, from_step, to_step, segment)
        found: dict[str, dict[str, list[Any]]] = {}
        for at in sorted({reading.rank_of(rank, known[name]) for name in wanted}):
            here = [name for name in wanted if reading.rank_of(rank, known[name]) == at]
            seen = series_reads.view(reading.source(c, services, run, at), span)
            for name, level in series_reads.scalars(seen, here, points).items():
                found[name] = columns_of(level, first=seen.first)
    steps = sorted({step for columns in found.values() for step in columns["step"]})
    return Numbers(
        {"run_id": run_id, "step": steps, "series": {name: found[name] for name in wanted}}, headers=headers
    )


@router.get("/runs/{run_id}/series", response_class=Json)
def series(
    request: Request,
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
    """One statistic of one tensor as column arrays.

    ``shadow_scale`` is the scale that the recipe must give, at the steps at which every amax of its window
    was sent.
    """
    with services.database.read() as c:
        run = runs.get(c, run_id)
        headers = caching.of_run(request, run)
        known = runs.series(c, run.id)
        shadowed = stat == SHADOW and (kinds.STAT, SHADOW) not in known
        at = reading.stat_rank(known, "amax" if shadowed else stat, rank)
        span = reading.span(run, from_step, to_step, segment)
        if shadowed:
            described = services.descriptions.get(c, run)
            source = reading.source(c, services, run, at)
            name = fields.name(tensor, field="tensor")
            level, first = shadow_reads.series(source, span, name, points, described=described)
            answer = {"run_id": run_id, "tensor": tensor, "stat": stat, "rank": at}
            return Numbers(answer | columns_of(level, first=first), headers=headers)
        seen = series_reads.view(reading.source(c, services, run, at), span, with_tensors=True)
        level = series_reads.series(
            seen,
            fields.name(stat, field="stat"),
            fields.name(tensor, field="tensor"),
            points,
            stored=reading.stored_stats(known),
            tensors=services.descriptions.get(c, run).tensors,
        )
    found = columns_of(level, first=seen.first)
    return Numbers({"run_id": run_id, "tensor": tensor, "stat": stat, "rank": at, **found}, headers=headers)


@router.get("/runs/{run_id}/heatmap", response_class=Json)
def heatmap(
    request: Request,
    run_id: RunId,
    services: Use,
    stat: Name,
    role: Annotated[str | None, Query(max_length=64)] = None,
    from_step: FromStep = None,
    to_step: ToStep = None,
    columns: Annotated[int, Query(ge=1, le=MAX_COLUMNS)] = DEFAULT_COLUMNS,
    log2: Annotated[bool, Query(description="Cells are logarithms of the worst values.")] = False,
    rank: RankQuery = None,
    segment: Segment = None,
) -> Response:
    """One statistic of all tensors: the worst value of each tensor in each bin of steps."""
    with services.database.read() as c:
        run = runs.get(c, run_id)
        headers = caching.of_run(request, run)
        known = runs.series(c, run.id)
        described = services.descriptions.get(c, run).tensors
        at = reading.stat_rank(known, fields.name(stat, field="stat"), rank)
        span = reading.span(run, from_step, to_step, segment)
        seen = series_reads.view(reading.source(c, services, run, at), span, with_tensors=True)
        names = heat_reads.tensor_names(seen)
        shown = [name for name in names if role is None or split_tensor(name)[1] == role]
        shown.sort(key=lambda name: reading.order(name, described.get(name, {})))
        last = max(span.first, min(span.last, run.last_step or 0))
        heat = HeatMap(stat, shown, min(max(span.first, run.first_step or 0), last), last, columns, log2)
        heat_reads.fill(seen, heat, stored=reading.stored_stats(known), tensors=described)
    return Numbers(heat.to_json(), headers=headers)


def _line(row: Mapping[str, Any]) -> str:
    """A line of a log. Looking for numbers that are not finite costs more than writing, so most rows, which
    have none, are written without.
    """
    try:
        return json.dumps(row, separators=(",", ":"), ensure_ascii=False, allow_nan=False) + "\n"
    except ValueError:
        return strict_json.dumps(row) + "\n"


class _Log(StreamingResponse):
    """Has no end if the run is deleted meanwhile: the connection is cut, which a client can tell from one."""

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        except export.Removed:
            return


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
        for row in export.rows(
            services.database,
            run.id,
            ranks,
            span,
            tensor_tables=services.tensor_tables,
            objects=services.objects,
        ):
            yield _line(row)

    pieces = export.in_pieces(lines())
    try:  # as long as nothing was sent, what cannot be read is answered instead of being cut off
        first = next(pieces)
    except OSError as error:
        raise Unreachable(f"a step of run {run_id}") from error
    name = f'attachment; filename="{run_id}.jsonl"'
    return _Log(chain([first], pieces), media_type="application/jsonl", headers={"Content-Disposition": name})
