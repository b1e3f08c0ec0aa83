"""Pages for people, and signing in."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import parse_qs

import anyio.to_thread
from fastapi import APIRouter, Query, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from floatscope.protocol.names import MAX_STEP
from floatscope_server import body, page_views
from floatscope_server.access import is_same_origin, local_path
from floatscope_server.errors import Problem
from floatscope_server.gate import set_session
from floatscope_server.reference import reference
from floatscope_server.routes import fields
from floatscope_server.routes.fields import RunId, Text
from floatscope_server.routes.runs import told
from floatscope_server.services import Use
from floatscope_server.store import runs, verdicts

router = APIRouter(include_in_schema=False)

LOGIN_BODY_BYTES = 16 * 1024
NOT_VALID = "That token is not valid. It is in the file 'token' of the server's data directory."


@router.get("/")
def overview(services: Use, project: Text = None) -> Response:
    """All runs, or those of a project."""
    wanted = fields.name(project, field="project") if project else None
    with services.database.read() as c:
        view = page_views.runs_view(c, project=wanted, version=services.version)
    return HTMLResponse(services.pages.runs(view))


@router.get("/runs/{run_id}")
def run_page(
    run_id: RunId, services: Use, at: Annotated[int | None, Query(ge=0, le=MAX_STEP)] = None
) -> Response:
    """One run."""
    with services.database.read() as c:
        run = runs.get(c, run_id)
        verdict = told(run, verdicts.find(c, run.id) or {})
        view = page_views.run_view(c, run, at=at, verdict=verdict, version=services.version)
    return HTMLResponse(services.pages.run(view))


@router.get("/login")
def login_page(services: Use, next: Text = None, failed: Text = None) -> Response:
    """The form that asks for a token."""
    error = NOT_VALID if failed else None
    return HTMLResponse(services.pages.login(error, local_path(next or "/")))


@router.post("/login")
async def login(request: Request, services: Use) -> Response:
    """Exchanges a token for a session."""
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
    public_url = services.settings.public_url
    sent_by_browser = origin is not None or site is not None
    host = request.headers.get("host", "")
    if sent_by_browser and not is_same_origin(
        origin=origin, fetch_site=site, host=host, public_url=public_url
    ):
        raise Problem(403, "Request from another site", "sign in on this server's own page")
    content = await body.read(request, limit=LOGIN_BODY_BYTES)
    form = parse_qs(content.decode("utf-8", "replace"))
    target = local_path(form.get("next", ["/"])[0])
    session = services.access.session(form.get("token", [""])[0].strip())
    if session is None:
        return HTMLResponse(services.pages.login(NOT_VALID, target), status_code=401)
    answer = RedirectResponse(target, status_code=303)
    set_session(answer, services.access, session, public_url=public_url)
    return answer


@router.post("/logout")
async def logout(services: Use) -> Response:
    """Forgets the session in this browser."""
    answer = RedirectResponse("/login", status_code=303)
    answer.delete_cookie(services.access.cookie, path="/")
    return answer


@router.get("/docs")
async def docs(request: Request) -> Response:
    """The API in words, made from its OpenAPI document; it loads nothing from elsewhere."""
    return HTMLResponse(await anyio.to_thread.run_sync(reference, request.app.openapi()))


@router.get("/static/{path:path}")
def static_file(request: Request, path: str, services: Use) -> Response:
    """Styles, scripts and plotly.js."""
    return services.static_files.answer(request)
