"""Settings: tokens, display, what the server keeps."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from floatscope_dashboards.settings_page import settings_page
from floatscope_server.callers import By
from floatscope_server.services import Use
from floatscope_server.views.settings import settings_view
from floatscope_server.views.shell import shell_of

router = APIRouter(include_in_schema=False)


@router.get("/settings")
def show_settings(request: Request, services: Use, by: By) -> Response:
    """Settings of this browser and of the server."""
    with services.database.read() as c:
        shell = shell_of(c, request, services, by)
        view = settings_view(c, services, by)
    return HTMLResponse(services.pages.show(settings_page(view, shell.say), shell))
