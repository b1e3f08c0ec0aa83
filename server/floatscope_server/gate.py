"""ASGI layers around the routes: who may come in, and the headers that keep browsers careful."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request, cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from floatscope_dashboards.pages import CONTENT_SECURITY_POLICY
from floatscope_server.access import Access, is_same_origin, local_path
from floatscope_server.answers import ProblemAnswer
from floatscope_server.body import drain
from floatscope_server.callers import ADMIN, NOBODY, Caller
from floatscope_server.errors import Problem

OPEN_PATHS = ("/healthz", "/readyz", "/login")
STATIC = "/static/"
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
API_PATHS = ("/api/", "/openapi.json", "/metrics")
SESSION_ATTRIBUTES: dict[str, Any] = {"httponly": True, "samesite": "lax", "path": "/"}

_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}


class CarefulHeaders:
    """Adds the security headers, and ``no-store`` where a route says nothing about caching."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, send_with_headers)


class Gate:
    """Lets a request through with a valid Bearer token or session cookie; else 401, or 303 to /login.

    A request that changes something and is let in by a cookie must come from a page of this server.
    """

    def __init__(self, app: ASGIApp, *, access: Access, public_url: str) -> None:
        self._app = app
        self._access = access
        self._public_url = public_url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["caller"] = NOBODY
        if _is_open(scope["path"]):
            await self._app(scope, receive, send)
            return
        state["caller"] = Caller("admin", scopes=frozenset((ADMIN,)), address=_address_of(scope))
        answer = self._refusal(scope)
        if answer is None:
            await self._app(scope, receive, send)
        else:
            await drain(Request(scope, receive))
            await answer(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        is_api = scope["path"].startswith(API_PATHS)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return None if self._access.knows(token.strip()) else _unauthorized("the token is not valid")
        if not is_api and scope["method"] == "GET":
            given = dict(parse_qsl(scope["query_string"].decode("latin-1"))).get("token")
            if given is not None:
                return self._sign_in(scope, given)
        cookie = cookie_parser(headers.get("cookie", "")).get(self._access.cookie)
        if cookie is not None and self._access.has_session(cookie):
            return None if scope["method"] in SAFE_METHODS or self._is_ours(headers) else _foreign()
        if is_api or scope["method"] not in SAFE_METHODS:
            return _unauthorized("no token and no session")
        return RedirectResponse(
            "/login?" + urlencode({"next": _address(scope, without_token=True)}), status_code=303
        )

    def _sign_in(self, scope: Scope, token: str) -> Response:
        session = self._access.session(token)
        target = local_path(_address(scope, without_token=True))
        if session is None:
            return RedirectResponse("/login?" + urlencode({"next": target, "failed": "1"}), status_code=303)
        answer = RedirectResponse(target, status_code=303)
        set_session(answer, self._access, session, public_url=self._public_url)
        return answer

    def _is_ours(self, headers: Headers) -> bool:
        return is_same_origin(
            origin=headers.get("origin"),
            fetch_site=headers.get("sec-fetch-site"),
            host=headers.get("host", ""),
            public_url=self._public_url,
        )


def set_session(answer: Response, access: Access, session: str, *, public_url: str) -> None:
    """Sets the session's cookie: scripts cannot read it, other sites cannot use it to change anything."""
    answer.set_cookie(
        access.cookie,
        session,
        max_age=30 * 86_400,
        secure=public_url.startswith("https://"),
        **SESSION_ATTRIBUTES,
    )


def _address_of(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(STATIC)


def _address(scope: Scope, *, without_token: bool) -> str:
    pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    kept = [(k, v) for k, v in pairs if not (without_token and k == "token")]
    path = quote(scope["path"], safe="/~:@!$&'()*+,;=")
    return path + ("?" + urlencode(kept) if kept else "")


def _unauthorized(detail: str) -> Response:
    return ProblemAnswer(
        Problem(
            401,
            "Not signed in",
            detail,
            field="Authorization",
            expected="Bearer and a valid token",
            hint="send Authorization: Bearer TOKEN; the file 'token' in the data directory holds it",
            headers={"WWW-Authenticate": 'Bearer realm="floatscope"'},
        )
    )


def _foreign() -> Response:
    return ProblemAnswer(
        Problem(
            403,
            "Request from another site",
            "a browser session may change things only from this server's own pages",
            field="Origin",
            expected="this server's own address",
            hint="use a token instead of the browser's session",
        )
    )
