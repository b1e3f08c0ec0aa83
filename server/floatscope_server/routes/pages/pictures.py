"""Pieces of the run page that change with the step shown."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from floatscope.protocol.names import MAX_STEP
from floatscope_dashboards.ruler import ruler
from floatscope_server.callers import By
from floatscope_server.routes.fields import RunId
from floatscope_server.services import Use
from floatscope_server.store import runs
from floatscope_server.views.pictures import step_view
from floatscope_server.views.shell import shell_of

router = APIRouter(include_in_schema=False)

MAX_KEPT = 4
"""Tensors of an address that are shown whatever they are like."""


@router.get("/runs/{run_id}/ruler")
def show_ruler(request: Request, run_id: RunId, services: Use, by: By) -> Response:
    """The range ruler at one step. ``at``: the step; what is no step asks for the one the page opens with.
    ``t``, also more than once: a tensor shown whatever it is like. ``all``: "1" for many more than the worst.
    """
    at = _step(request.query_params.get("at"))
    with services.database.read() as c:
        shell = shell_of(c, request, services, by)
        run = runs.get(c, run_id)
        view = step_view(
            c,
            run,
            at=at,
            info={"tensors": services.descriptions.get(c, run).tensors},
            known=runs.series(c, run.id),
            tables=services.tensor_tables,
            objects=services.objects,
            warm=services.warm,
            everything=request.query_params.get("all") == "1",
            kept=request.query_params.getlist("t")[:MAX_KEPT],
        )
    card = ruler(view, shell.say, run=run_id)
    return HTMLResponse(services.pages.part("_ruler.html", shell, ruler=card))


def _step(text: str | None) -> int | None:
    """A step from an address, None for anything else."""
    if text is None or not text.isascii() or not text.isdecimal() or len(text) > len(str(MAX_STEP)):
        return None
    return min(int(text), MAX_STEP)
