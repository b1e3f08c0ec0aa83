"""How the values of one tensor are spread over the powers of two, over time."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request
from numpy.typing import NDArray
from starlette.responses import Response

from floatscope_server import caching
from floatscope_server.answers import Json, Numbers, spelled
from floatscope_server.reduce import MAX_COLUMNS
from floatscope_server.routes import fields, reading
from floatscope_server.routes.fields import FromStep, RankQuery, RunId, Segment, ToStep
from floatscope_server.services import Use
from floatscope_server.store import histogram_reads, runs, series_reads

router = APIRouter(tags=["series"])

LOWEST_EXPONENT = -40  # of the 64 bins; the first and the last also hold what lies beyond
DEFAULT_COLUMNS = 250


@router.get("/runs/{run_id}/histogram", response_class=Json)
def histogram(
    request: Request,
    run_id: RunId,
    services: Use,
    tensor: Annotated[str, Query(max_length=4096)],
    from_step: FromStep = None,
    to_step: ToStep = None,
    columns: Annotated[
        int, Query(ge=1, le=MAX_COLUMNS, description="At most this many of the steps that were sampled.")
    ] = DEFAULT_COLUMNS,
    rank: RankQuery = None,
    segment: Segment = None,
) -> Response:
    """Histograms of one tensor by exponent, before any scale, at the steps at which they were sampled.

    Of more steps than ``columns`` some are chosen evenly, the first and the last among them. ``counts[i]``
    are those of ``step[i]`` from the power of two ``lowest[i]`` on; a value counts for the highest power of
    two that is not above its magnitude, and 0, NaN and infinity are not counted. Powers below -40 and above
    23 are counted there.
    """
    with services.database.read() as c:
        run = runs.get(c, run_id)
        headers = caching.of_run(request, run)
        known = runs.series(c, run.id)
        at = reading.stat_rank(known, "amax", rank)
        span = reading.span(run, from_step, to_step, segment)
        name = fields.name(tensor, field="tensor")
        seen = series_reads.view(reading.source(c, services, run, at), span, with_tensors=True)
        found = histogram_reads.of_tensor(seen, name, columns, stored=reading.stored_stats(known))
    cut = [_cut(row) for row in found.counts]
    answer = {
        "run_id": run_id,
        "tensor": tensor,
        "rank": at,
        "sampled": found.sampled,
        "looked_at": found.looked_at,
        "step": found.step.tolist(),
        "lowest": [lowest for lowest, _counts in cut],
        "counts": [counts for _lowest, counts in cut],
        "scale": spelled(found.scale, found.has_scale),
        "amax": spelled(found.amax, found.has_amax),
    }
    return Numbers(answer, headers=headers)


def _cut(counts: NDArray[Any]) -> tuple[int, list[int]]:
    """The lowest exponent that has values, and the counts from it to the highest that has."""
    there = np.flatnonzero(counts)
    first, last = int(there[0]), int(there[-1])
    return first + LOWEST_EXPONENT, counts[first : last + 1].tolist()
