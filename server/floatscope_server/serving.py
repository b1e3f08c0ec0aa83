"""The HTTP server around the application."""

from __future__ import annotations

import socket

import anyio.to_thread
import uvicorn
from fastapi import FastAPI

from floatscope_server.services import Services

SHUTDOWN_S = 10  # requests under way get this long
HEADER_BYTES = 32 * 1024  # of first line and headers, before a connection is closed; one read may bring more
KEEP_ALIVE_S = 75  # agents send every few seconds to a minute; longer than the 60 s of most proxies


class GracefulServer(uvicorn.Server):
    """Ends live event streams before it waits for requests to end; they would never end by themselves."""

    def __init__(self, app: FastAPI) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,  # addresses may hold a token
                server_header=False,
                http="h11",  # the parser whose limits are set here, whatever else is installed
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

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stops taking requests and waits for those under way."""
        self._events.close()
        await anyio.to_thread.run_sync(self._crew.leave)
        await super().shutdown(sockets)
