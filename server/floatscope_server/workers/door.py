"""The private listener of a worker: only other workers of the same database come in, by a secret they share.

It leads to the same application, so that what comes in is checked as anywhere else.
"""

from __future__ import annotations

import hmac
import socket
from urllib.parse import urlsplit

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from floatscope_server.workers.crew import Inside

SECRET_HEADER = b"x-floatscope-worker"
NAME_HEADER = b"x-floatscope-name"
CLIENT_HEADER = b"x-floatscope-client"
PASSED_ON = "floatscope.passed_on"
"""In the scope of a request that another worker passed on."""
SECRET_NAME = "workers"  # noqa: S105  # the name under which the secret is kept
DEFAULT_PORT = 8322
BACKLOG = 512


class Door:
    """The outermost layer.

    port: the private one.  name: this worker's, which its answers carry, so that what another program says at
    an address that was a worker's once is not taken for its answer.
    """

    def __init__(self, app: ASGIApp, *, port: int, secret: str, name: str) -> None:
        self._app = app
        self._port = port
        self._secret = secret.encode()
        self._name = name.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        at = scope.get("server") or (None, None)  # None where a server has no address
        if scope["type"] != "http" or at[1] != self._port:
            await self._app(scope, receive, send)
            return
        said = dict(scope["headers"])
        if not hmac.compare_digest(said.get(SECRET_HEADER, b""), self._secret):
            await PlainTextResponse("this address is for other workers\n", status_code=403)(
                scope, receive, send
            )
            return
        host, _, port = said.get(CLIENT_HEADER, b"").decode("latin-1").rpartition(" ")
        client = (host, int(port)) if port.isdigit() else None

        async def signed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (NAME_HEADER, self._name)]}
            await send(message)

        await self._app({**scope, "client": client, PASSED_ON: True}, receive, signed)


def listen(advertise: str | None, *, number: int) -> tuple[socket.socket, Inside]:
    """Opens the private listener of the worker with this number on its machine. Raises OSError.

    Without ``advertise`` on any free port of the loopback address; with ``http://host:port`` on that host at
    port + number, so that workers on other machines reach it.
    """
    if advertise is None:
        listener = _open("127.0.0.1", 0)
        port = listener.getsockname()[1]
        return listener, Inside(f"http://127.0.0.1:{port}", port)
    parts = urlsplit(advertise)
    host = parts.hostname or ""
    listener = _open(host, (parts.port or DEFAULT_PORT) + number)
    port = listener.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    return listener, Inside(f"http://{shown}:{port}", port)


def _open(host: str, port: int) -> socket.socket:
    family, kind, proto, _name, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, proto)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
