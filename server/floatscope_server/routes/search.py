"""Search over runs and tensors."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from floatscope.protocol.names import RUN_ID_PATTERN
from floatscope_server.answers import Json
from floatscope_server.routes import fields
from floatscope_server.services import Use
from floatscope_server.store import searching
from floatscope_server.store.searching import FoundRun

router = APIRouter(tags=["runs"])

MOST_CHARS = 400
MOST_FOUND = 50


@router.get("/search", response_class=Json)
def search(
    services: Use,
    q: Annotated[str, Query(max_length=MOST_CHARS, description="Words, all of which must be there.")] = "",
    run: Annotated[
        str | None,
        Query(pattern=f"^{RUN_ID_PATTERN}$", description="The run whose tensors are searched."),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=MOST_FOUND, description="Of each kind.")] = 10,
) -> Response:
    """Runs by name, id, project and cause, and tensors by name, best first. Without ``run``, or if there is
    no such run, the tensors of the newest live runs are searched; without a word, the newest runs are listed.
    """
    words = searching.words_of(fields.storable(q) or "")
    with services.database.read() as c:
        found, more_runs = searching.find_runs(c, words, limit=limit)
        of = (searching.one_run(c, run) if run is not None else []) or searching.live_runs(c)
        tensors, more_tensors = searching.find_tensors(c, services.tensor_tables, of, words, limit=limit)
    return Json(
        {
            "runs": [_shown(item) for item in found],
            "more_runs": more_runs,
            "tensors": [
                {"run_id": item.run.run_id, "run_name": item.run.name, "name": item.name} for item in tensors
            ],
            "more_tensors": more_tensors,
        }
    )


def _shown(run: FoundRun) -> dict[str, str | bool | None]:
    return {
        "run_id": run.run_id,
        "name": run.name,
        "project": run.project,
        "status": run.status,
        "health": run.health,
        "cause": run.cause,
        "warming_up": run.warming_up,
    }
