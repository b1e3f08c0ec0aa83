"""Rules and notifications."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from floatscope.protocol.names import MAX_NAME_BYTES
from floatscope_dashboards.rules_page import rules_page
from floatscope_server.callers import By
from floatscope_server.services import Use
from floatscope_server.views.rules import rules_view
from floatscope_server.views.shell import shell_of

router = APIRouter(include_in_schema=False)


@router.get("/rules")
def rules(request: Request, services: Use, by: By) -> Response:
    """All rules as they are set for every project, or in the project that the address names."""
    asked = request.query_params.get("project")
    with services.database.read() as c:
        shell = shell_of(c, request, services, by)
        view = rules_view(c, services, by, asked=_storable(asked))
    return HTMLResponse(services.pages.show(rules_page(view, shell.say), shell))


def _storable(asked: str | None) -> str | None:
    """What a column can hold: the rest is no project's name, and the page says that it knows none such."""
    if asked is None:
        return None
    text = asked.encode("utf-8", "replace").decode().replace("\x00", "\ufffd")
    return text.encode()[:MAX_NAME_BYTES].decode("utf-8", "ignore")
