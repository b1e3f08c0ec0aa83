"""The comparison of two runs."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from floatscope_dashboards.compare_page import choose_page, compare_page
from floatscope_server.callers import By
from floatscope_server.services import Use
from floatscope_server.views.compare import choose_view, compare_view, found_pair, read_query
from floatscope_server.views.shell import shell_of

router = APIRouter(include_in_schema=False)


@router.get("/compare")
def show_comparison(request: Request, services: Use, by: By) -> Response:
    """Two runs beside each other, or choosing them."""
    query = read_query(request.query_params)
    with services.database.read() as c:
        shell = shell_of(c, request, services, by)
        own, other = found_pair(c, query)
        if own is None or other is None or own.id == other.id:
            page = choose_page(choose_view(c, query), shell.say)
        else:
            page = compare_page(compare_view(c, services, own, other, query), shell.say)
    return HTMLResponse(services.pages.show(page, shell))
