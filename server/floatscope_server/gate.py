"""The ASGI layer in front of the routes: who may come in, and what for. It runs before anything of the
request's body is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import anyio.to_thread
from sqlalchemy.exc import SQLAlchemyError
from starlette.datastructures import Headers
from starlette.requests import Request, cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from floatscope_server import scopes
from floatscope_server.access import Grant
from floatscope_server.answers import told
from floatscope_server.body import drain
from floatscope_server.callers import ADMIN, Caller
from floatscope_server.doorkeeper import Doorkeeper, unauthorized
from floatscope_server.errors import Problem
from floatscope_server.origins import is_same_origin, local_path
from floatscope_server.sessions import LIFE_S

OPEN_PATHS = ("/healthz", "/readyz", "/login")
STATIC = "/static/"
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
API_PATHS = ("/api/", "/openapi.json", "/metrics")
NO_REFERRER = {"Referrer-Policy": "no-referrer"}


@dataclass(frozen=True)
class Admitted:
    """What let a request in; ``session``: the cookie, if that did."""

    grant: Grant
    session: str | None = None


class Gate:
    """Lets a request through with a valid token or session that may do it.

    401 without one (a page: 303 to /login), 403 with one that may not, 429 to those who guess. A request that
    changes something and is let in by a cookie must come from a page of this server. ``request.state`` then
    has ``caller`` (who it is) and ``admitted`` (what let it in; not on open addresses).
    """

    def __init__(self, app: ASGIApp, *, doorkeeper: Doorkeeper, public_url: str) -> None:
        self._app = app
        self._doorkeeper = doorkeeper
        self._public_url = public_url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no websockets here
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = Headers(scope=scope)
        peer = scope["client"][0] if scope.get("client") else ""
        hops = ",".join(headers.getlist("x-forwarded-for"))  # a proxy may add a line of its own
        address = self._doorkeeper.address(peer, hops)
        state = scope.setdefault("state", {})
        state["caller"] = Caller("nobody", address=address)
        answer: Response | None = None
        if not _is_open(scope["path"]):
            try:
                found = await self._judged(scope, headers, address)
                if isinstance(found, Admitted):
                    state["admitted"] = found
                    state["caller"] = found.grant.caller(address, session=found.session is not None)
                    _check_scope(scope, state["caller"])
                else:
                    answer = found
            except Problem as problem:
                answer = _told(scope, problem)
            except SQLAlchemyError:
                answer = _told(scope, _cannot_look())
        if answer is None:
            await self._app(scope, receive, send)
        else:
            await drain(Request(scope, receive))
            await answer(scope, receive, send)

    async def _judged(self, scope: Scope, headers: Headers, address: str) -> Admitted | Response:
        is_api = scope["path"].startswith(API_PATHS)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return Admitted(await self._doorkeeper.token(token.strip(), address=address))
        cookie = cookie_parser(headers.get("cookie", "")).get(self._doorkeeper.sessions.cookie)
        grant = None if cookie is None else await self._doorkeeper.session(cookie, address=address)
        if not is_api and scope["method"] == "GET":
            given = dict(parse_qsl(scope["query_string"].decode("latin-1"))).get("token")
            if given is not None:
                return await self._sign_in(scope, headers, given, address, has_session=grant is not None)
        if grant is not None:
            if scope["method"] not in SAFE_METHODS and not self._is_ours(headers):
                raise _foreign()
            return Admitted(grant, cookie)
        if is_api or scope["method"] not in SAFE_METHODS:
            raise unauthorized("no token and no session")
        return RedirectResponse("/login?" + urlencode({"next": _address(scope)}), status_code=303)

    async def _sign_in(
        self, scope: Scope, headers: Headers, token: str, address: str, *, has_session: bool
    ) -> Response:
        """Signs in by ``?token=`` and leads to the same page without it. A link on another site cannot put
        somebody who is signed in into another session.
        """
        target = local_path(_address(scope))
        site = headers.get("sec-fetch-site", "none")
        if has_session and site not in ("none", "same-origin"):
            return RedirectResponse(target, status_code=303, headers=NO_REFERRER)
        try:
            grant = await self._doorkeeper.token(token, address=address)
        except Problem as problem:
            failed = {"next": target, "failed": "1" if problem.status == 401 else "2"}
            return RedirectResponse("/login?" + urlencode(failed), status_code=303, headers=NO_REFERRER)
        answer = RedirectResponse(target, status_code=303, headers=NO_REFERRER)
        await start_session(answer, self._doorkeeper, grant, address=address, public_url=self._public_url)
        return answer

    def _is_ours(self, headers: Headers) -> bool:
        return is_same_origin(
            origin=headers.get("origin"),
            fetch_site=headers.get("sec-fetch-site"),
            host=headers.get("host", ""),
            public_url=self._public_url,
        )


async def start_session(
    answer: Response, doorkeeper: Doorkeeper, grant: Grant, *, address: str, public_url: str
) -> None:
    """Starts a session and sets its cookie: scripts cannot read it, and other sites cannot use it to change
    anything.
    """

    def start() -> str:
        return doorkeeper.sessions.start(grant, address=address)

    answer.set_cookie(
        doorkeeper.sessions.cookie,
        await anyio.to_thread.run_sync(start),
        max_age=LIFE_S,
        **cookie_attributes(public_url),
    )


def cookie_attributes(public_url: str) -> dict[str, Any]:
    """What the session's cookie is set and deleted with; Lax, so that links in messages find the session."""
    return {
        "httponly": True,
        "samesite": "lax",
        "path": "/",
        "secure": public_url.startswith("https://"),
    }


def _told(scope: Scope, problem: Problem) -> Response:
    return told(Request(scope), problem, pages=scope["app"].state.services.pages)


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(STATIC)


def _check_scope(scope: Scope, caller: Caller) -> None:
    """Raises Problem 403 naming the scope that is missing. An address without a route is left to the router,
    which says so.
    """
    needed = scopes.needed(scope["method"], scope["path"])
    if needed is None:
        if caller.may(ADMIN) or not _has_route(scope):
            return
        needed = ADMIN
    if needed != scopes.ANY and not caller.may(needed):
        raise _missing(needed, caller)


def _has_route(scope: Scope) -> bool:
    return any(route.matches(scope)[0] is Match.FULL for route in scope["app"].router.routes)


def _address(scope: Scope) -> str:
    """The request's own address without a token in it."""
    pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    kept = [(key, value) for key, value in pairs if key != "token"]
    path = quote(scope["path"], safe="/~:@!$&'()*+,;=")
    return path + ("?" + urlencode(kept) if kept else "")


def _missing(needed: str, caller: Caller) -> Problem:
    has = ", ".join(name for name in scopes.SCOPES if caller.may(name)) or "none"
    return Problem(
        403,
        "Not allowed",
        f"this needs a token with the scope {needed}; the one that was used has {has}",
        field="Authorization",
        expected=f"a token with the scope {needed}",
        hint="POST /api/v1/tokens makes one; that needs a token with the scope admin",
        extra={"missing_scope": needed},
        headers={
            "WWW-Authenticate": f'Bearer realm="floatscope", error="insufficient_scope", scope="{needed}"'
        },
    )


def _foreign() -> Problem:
    return Problem(
        403,
        "Request from another site",
        "a browser session may change things only from this server's own pages",
        field="Origin",
        expected="this server's own address",
        hint="use a token instead of the browser's session",
    )


def _cannot_look() -> Problem:
    return Problem(
        503,
        "Storage is not available",
        "the database does not answer, so tokens and sessions cannot be checked",
        hint="send it again later; the server's log says more",
        headers={"Retry-After": "5"},
    )
