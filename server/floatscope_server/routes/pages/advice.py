"""Precision advice for a run."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from floatscope_dashboards.advice_page import advice_page
from floatscope_server.callers import By
from floatscope_server.routes.fields import RunId
from floatscope_server.services import Use
from floatscope_server.store import runs
from floatscope_server.views.advice import advice_view
from floatscope_server.views.shell import shell_of

router = APIRouter(include_in_schema=False)


@router.get("/runs/{run_id}/advice")
def show_advice(request: Request, run_id: RunId, services: Use, by: By) -> Response:
    """Which layers of the run should leave FP8; with ``framework=`` and ``gpu=``, chosen for those."""
    with services.database.read() as c:
        shell = shell_of(c, request, services, by)
        view = advice_view(c, services, runs.get(c, run_id), request.query_params)
    return HTMLResponse(services.pages.show(advice_page(view, shell.say), shell))
