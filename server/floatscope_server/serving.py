"""The HTTP server around the application."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import anyio.to_thread
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from floatscope_server.services import Services

SHUTDOWN_S = 10  # requests under way get this long
HEADER_BYTES = 32 * 1024  # of first line and headers, before a connection is closed; one read may bring more
HEADER_S = 15.0  # from the first byte, or the connection, until the headers are there
KEEP_ALIVE_S = 75  # agents send every few seconds to a minute; longer than the 60 s of most proxies


class PromptHeaders(H11Protocol):
    """Closes a connection whose next request has not begun with whole headers in time.

    The library itself only closes connections that rest between two requests.
    """

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._waits: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_answering():
            self._wait_no_more()
        else:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        super().connection_lost(exc)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        if self._waits is None:
            self._waits = self.loop.call_later(HEADER_S, self._give_up)

    def _wait_no_more(self) -> None:
        if self._waits is not None:
            self._waits.cancel()
            self._waits = None

    def _give_up(self) -> None:
        self._waits = None
        if not self._is_answering() and not self.transport.is_closing():
            self.transport.close()


class GracefulServer(uvicorn.Server):
    """Ends live event streams before it waits for requests to end; they would never end by themselves."""

    def __init__(self, app: FastAPI) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,  # addresses may hold a token
                server_header=False,
                http=PromptHeaders,
                h11_max_incomplete_event_size=HEADER_BYTES,
                ws="none",
                proxy_headers=False,  # who is believed is a setting of ours, see origins.py
                timeout_graceful_shutdown=SHUTDOWN_S,
                timeout_keep_alive=KEEP_ALIVE_S,
                lifespan="on",
            )
        )
        services: Services = app.state.services
        self._events = services.events
        self._crew = services.crew
        self._readiness = services.readiness
        self._drain_s = services.settings.drain_s

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Says that it is stopping, takes requests a little longer if it is told to, and waits for those
        under way.
        """
        self._readiness.drain()
        if self._drain_s and not self.force_exit:
            await asyncio.sleep(self._drain_s)
        self._events.close()
        await anyio.to_thread.run_sync(self._crew.leave)
        await super().shutdown(sockets)
