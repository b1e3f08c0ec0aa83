"""Which layers of a run should leave FP8."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from floatscope.protocol.names import RUN_ID_PATTERN
from floatscope_server import advising, caching
from floatscope_server.answers import Json
from floatscope_server.comparing import state
from floatscope_server.routes import fields
from floatscope_server.routes.fields import RunId
from floatscope_server.services import Use
from floatscope_server.store import runs

router = APIRouter(tags=["runs"])

MOST_LAYERS = 100_000


@router.get("/runs/{run_id}/advice", response_class=Json)
def advice(
    request: Request,
    run_id: RunId,
    services: Use,
    baseline: Annotated[
        str | None, Query(pattern=f"^{RUN_ID_PATTERN}$", description="Default: that of the run.")
    ] = None,
    framework: Annotated[
        str | None, Query(max_length=32, description="te, torchao, megatron, floatscope.")
    ] = None,
    recipes: Annotated[
        str | None, Query(max_length=256, description="That a layer may get, by comma.")
    ] = None,
    max_layers: Annotated[int | None, Query(ge=1, le=MOST_LAYERS)] = None,
    gpu: Annotated[
        str | None, Query(max_length=200, description="For the price and what it can run, like H100 SXM.")
    ] = None,
) -> Response:
    """The document of ``floatscope advise --json`` for a stored run: layers to change with why, gain and
    cost, settings to paste, and what could not be decided.

    ``step_rows``: steps with statistics that were read, and that there are; of long runs some are read.
    """
    asked = advising.checked(framework, fields.listed(recipes, field="recipes"), max_layers, gpu)
    with services.database.read() as c:
        run = runs.get(c, run_id)
        named = baseline or run.baseline or ""
        base = runs.get(c, baseline) if baseline else runs.find(c, named) if named else None
        base = None if base is not None and base.id == run.id else base
        parts = (state(run), run.version, None if base is None else state(base))
        etag = caching.tag(*parts, request.url.path, request.url.query, services.version)
        headers = {"ETag": etag, "Cache-Control": caching.CHECK_EACH_TIME}
        if caching.holds(request, etag):
            raise caching.Unchanged(headers)
        found = advising.advised(c, services, run, base, asked)
    extra = {
        "baseline": None if base is None else base.run_id,
        "step_rows": {"read": found.read, "logged": found.logged},
    }
    return Json(dict(found.document) | extra, headers=headers)
