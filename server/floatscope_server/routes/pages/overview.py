"""All runs."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from floatscope_dashboards.runs_page import runs_page
from floatscope_dashboards.runs_query import read_query
from floatscope_server.callers import By
from floatscope_server.services import Use
from floatscope_server.views.overview import runs_view
from floatscope_server.views.shell import shell_of

router = APIRouter(include_in_schema=False)


@router.get("/")
def overview(request: Request, services: Use, by: By) -> Response:
    """One page of the runs that the address asks for."""
    with services.database.read() as c:
        shell = shell_of(c, request, services, by)
        view = runs_view(
            c,
            query=read_query(request.query_params),
            version=services.version,
            translated=shell.say,
            objects=services.objects,
            warm=services.warm,
        )
    return HTMLResponse(services.pages.show(runs_page(view, shell.say), shell))
