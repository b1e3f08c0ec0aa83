"""Signing in and out of the pages."""

from __future__ import annotations

from typing import cast
from urllib.parse import parse_qs

import anyio.to_thread
from fastapi import APIRouter, Request
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, RedirectResponse, Response

from floatscope_dashboards.page import Shell
from floatscope_dashboards.plain_pages import login_page
from floatscope_dashboards.say import later
from floatscope_server import body
from floatscope_server.callers import By
from floatscope_server.errors import Problem
from floatscope_server.gate import NO_REFERRER, Admitted, cookie_attributes, start_session
from floatscope_server.language import say_of
from floatscope_server.origins import is_same_origin, local_path
from floatscope_server.routes.fields import Text
from floatscope_server.services import Services, Use

router = APIRouter(include_in_schema=False)

LOGIN_BODY_BYTES = 16 * 1024
MOST_FIELDS = 10
NOT_VALID = later("That token is not valid. It is in the file 'token' of the server's data directory.")
TOO_MANY = later(
    "Too many wrong tokens came from your address. Wait a minute, check the token and try again."
)


@router.get("/login")
def show_form(request: Request, services: Use, next: Text = None, failed: Text = None) -> Response:
    """The form that asks for a token."""
    error = None if not failed else TOO_MANY if failed == "2" else NOT_VALID
    return HTMLResponse(_form(request, services, error, local_path(next or "/")))


@router.post("/login")
async def login(request: Request, services: Use, by: By) -> Response:
    """Exchanges a token for a session. A form on another site is refused, so nobody is signed in unawares."""
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
    public_url = services.settings.public_url
    sent_by_browser = origin is not None or site is not None
    host = request.headers.get("host", "")
    if sent_by_browser and not is_same_origin(
        origin=origin, fetch_site=site, host=host, public_url=public_url
    ):
        raise Problem(403, "Request from another site", "sign in on this server's own page")
    content = await body.read(request, limit=LOGIN_BODY_BYTES)
    try:
        form = parse_qs(content.decode("utf-8", "replace"), max_num_fields=MOST_FIELDS)
    except ValueError as error:
        raise Problem(400, "Not a sign-in form", "the form has too many fields", field="body") from error
    target = local_path(form.get("next", ["/"])[0])
    try:
        token = form.get("token", [""])[0].strip()
        grant = await services.doorkeeper.token(token, address=by.address)
    except Problem as problem:
        text = TOO_MANY if problem.status == 429 else NOT_VALID
        html = _form(request, services, text, target)
        return HTMLResponse(html, status_code=problem.status, headers=problem.headers)
    before = _cookie(request, services)
    replaced = await services.doorkeeper.session(before) if before else None
    if replaced is not None:
        who = replaced.caller(by.address, session=True)
        await anyio.to_thread.run_sync(services.doorkeeper.sessions.end, before, who)
    answer = RedirectResponse(target, status_code=303, headers=NO_REFERRER)
    await start_session(answer, services.doorkeeper, grant, address=by.address, public_url=public_url)
    return answer


@router.post("/logout")
async def logout(request: Request, services: Use, by: By) -> Response:
    """Ends the session and forgets it in this browser."""
    admitted = cast(Admitted, request.state.admitted)
    if admitted.session is not None:
        await anyio.to_thread.run_sync(services.doorkeeper.sessions.end, admitted.session, by)
        services.crew.changes.tell("tokens")
    answer = RedirectResponse("/login", status_code=303)
    attributes = cookie_attributes(services.settings.public_url)
    answer.delete_cookie(services.doorkeeper.sessions.cookie, **attributes)
    return answer


def _form(request: Request, services: Services, error: str | None, target: str) -> str:
    say = say_of(request, services.pages)
    page = login_page(say, error=None if error is None else say(error), next=target)
    return services.pages.show(page, Shell(say, services.version))


def _cookie(request: Request, services: Services) -> str:
    return cookie_parser(request.headers.get("cookie", "")).get(services.doorkeeper.sessions.cookie, "")
