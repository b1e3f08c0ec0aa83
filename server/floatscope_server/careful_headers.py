"""The headers that keep browsers careful, on every answer."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from floatscope_dashboards.pages import CONTENT_SECURITY_POLICY

HSTS = "max-age=31536000"  # not for subdomains: they are other people's

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

    def __init__(self, app: ASGIApp, *, public_url: str) -> None:
        self._app = app
        https = public_url.startswith("https://")
        self._headers = {**_HEADERS, "Strict-Transport-Security": HSTS} if https else _HEADERS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, send_with_headers)
