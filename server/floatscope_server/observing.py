"""The layer that sees every request and its answer: counts it, times it, and writes one line about it."""

from __future__ import annotations

import logging
import re
import secrets
import time
from contextvars import ContextVar
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from floatscope_server import scopes
from floatscope_server.metrics.measures import NOT_ROUTED, Measures
from floatscope_server.workers.door import PASSED_ON

HEADER = "X-Request-Id"
_GIVEN = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_QUIET = ("/healthz", "/readyz", "/metrics", "/static/{path:path}")
_ABORTED = 499  # the client left before there was an answer

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""Of the request under way, for whatever is logged meanwhile."""

_log = logging.getLogger("floatscope_server.requests")


class Observed:
    """Takes over the client's ``X-Request-Id`` if it is a plain word, else makes one; answers carry it.

    The line has the template of the address, never the address: names and tokens in a query stay out of it.
    """

    def __init__(self, app: ASGIApp, *, measures: Measures) -> None:
        self._app = app
        self._measures = measures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        name = given.decode("ascii") if _GIVEN.fullmatch(given) else secrets.token_hex(8)
        request_id.set(name)
        status, began = _ABORTED, time.perf_counter()

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[HEADER] = name
            await send(message)

        self._measures.began()
        try:
            await self._app(scope, receive, watched)
        except BaseException:
            status = 500 if status == _ABORTED else status
            raise
        finally:
            self._note(scope, status=status, seconds=time.perf_counter() - began, name=name)

    def _note(self, scope: Scope, *, status: int, seconds: float, name: str) -> None:
        route = template(scope)
        method = scope["method"]
        if not scope.get(PASSED_ON):  # it was counted where it came in
            self._measures.ended(method=method, route=route, status=status, seconds=seconds)
        else:
            self._measures.left()
        caller = scope.get("state", {}).get("caller")
        told: dict[str, Any] = {
            "method": method,
            "route": route,
            "status": status,
            "duration_s": round(seconds, 4),
            "token": None if caller is None else (caller.token or caller.name),
            "request_id": name,
        }
        level = logging.DEBUG if route in _QUIET else logging.INFO
        _log.log(level, "%s %s %d", method, route, status, extra={"told": told})


def template(scope: Scope) -> str:
    """The address with names in place of what differs; ``none`` for what there is not."""
    return scopes.template(scope["method"], scope["path"]) or NOT_ROUTED
