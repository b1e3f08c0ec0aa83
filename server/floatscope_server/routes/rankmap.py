"""One scalar of all ranks over steps: where one rank is slower, hotter or less busy than the others."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request
from numpy.typing import NDArray
from starlette.responses import Response

from floatscope_server import caching
from floatscope_server.answers import Json, Numbers, spelled
from floatscope_server.rank_maps import THROTTLE, WORST
from floatscope_server.reduce import MAX_COLUMNS
from floatscope_server.routes import fields, reading
from floatscope_server.routes.fields import FromStep, RunId, ToStep
from floatscope_server.services import Use
from floatscope_server.store import kinds, rank_reads, runs
from floatscope_server.store.stretches import Span

router = APIRouter(tags=["series"])

DEFAULT_COLUMNS = 180


@router.get("/runs/{run_id}/rankmap", response_class=Json)
def rankmap(
    request: Request,
    run_id: RunId,
    services: Use,
    name: Annotated[str, Query(max_length=4096, description="The scalar.")],
    from_step: FromStep = None,
    to_step: ToStep = None,
    columns: Annotated[int, Query(ge=1, le=MAX_COLUMNS)] = DEFAULT_COLUMNS,
) -> Response:
    """A scalar of every rank: the worst value of each rank in each bin of steps, and where a GPU throttled.

    Worst is the lowest of ``gpu_util_pct`` and the highest of all others. More than 250 ranks are put
    together, neighbours in a row; of more than 1,024 only so many are looked at, evenly between the first and
    the last, and ``ranks_left_out`` says how many are not.
    """
    with services.database.read() as c:
        run = runs.get(c, run_id)
        headers = caching.of_run(request, run)
        asked = fields.name(name, field="name")
        known = runs.series(c, run.id)
        ranks = known.get((kinds.SCALARS, asked), ())
        looked_at = rank_reads.spread(ranks, rank_reads.MOST_RANKS)
        wide = reading.span(run, from_step, to_step, None)
        last = max(wide.first, min(wide.last, run.last_step or 0))
        span = Span(min(max(wide.first, run.first_step or 0), last), last)
        sources = [reading.source(c, services, run, rank) for rank in looked_at]
        low = WORST.get(asked) == "low"
        found = rank_reads.rank_map(sources, asked, span, columns=columns, low=low)
        throttled: list[list[int]] = []
        slowed = set(known.get((kinds.SCALARS, THROTTLE), ()))
        if sources and slowed:
            marks = rank_reads.rank_map(
                [source for source in sources if source.rank in slowed] or sources[:0],
                *(THROTTLE, span),
                columns=columns,
                low=False,
                most_rows=rank_reads.MOST_RANKS,
            )
            throttled = _throttled(marks, found)
    left_out = len(ranks) - len(looked_at)
    answer: dict[str, Any] = {
        "run_id": run_id,
        "name": asked,
        "worst": "low" if low else "high",
        "ranks": [list(row) for row in found.rows],
        "from": found.start.tolist(),
        "to": np.minimum(found.start // found.width * found.width + found.width - 1, span.last).tolist(),
        "values": [spelled(row, ~np.isnan(row)) for row in found.worst],
        "nan": _cells(found.nan),
        "inf": _cells(found.inf),
        "throttled": throttled,
        **({"ranks_left_out": left_out} if left_out else {}),
    }
    return Numbers(answer, headers=headers)


def _cells(counts: NDArray[np.int64]) -> list[list[int]]:
    """[row, column, count] of each cell that has any."""
    rows, columns = np.nonzero(counts)
    return [[int(r), int(k), int(counts[r, k])] for r, k in zip(rows, columns, strict=True)]


def _throttled(marks: rank_reads.RankMap, found: rank_reads.RankMap) -> list[list[int]]:
    """[row, column, reasons] of the cells in which a GPU was slowed down; reasons: NVML's bits, the highest
    value of the cell.
    """
    row_of = {rank: at for at, ranks in enumerate(found.rows) for rank in ranks}
    cells: dict[tuple[int, int], int] = {}
    for at, ranks in enumerate(marks.rows):
        for k in np.flatnonzero(np.nan_to_num(marks.worst[at]) > 0).tolist():
            key = (row_of[ranks[0]], k)
            cells[key] = max(cells.get(key, 0), int(marks.worst[at, k]))
    return [[row, column, reasons] for (row, column), reasons in sorted(cells.items())]
