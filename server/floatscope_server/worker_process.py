"""One worker: the application and its server, in the process that calls ``work``."""

from __future__ import annotations

import signal
import socket
from collections.abc import Mapping
from typing import Any

from floatscope_server import logs
from floatscope_server.app import create_app
from floatscope_server.database import Database
from floatscope_server.serving import GracefulServer
from floatscope_server.settings import Settings
from floatscope_server.workers import door
from floatscope_server.workers.crew import Inside

EXIT_FAULT = 1
LEAST_CONNECTIONS = 5


def work_in_own_process(values: Mapping[str, Any], listener: socket.socket, number: int) -> int:
    """As ``work``, with the values of the settings, in a process that has nothing yet."""
    settings = Settings.model_construct(**values)
    set_up_log(settings, worker=number)
    return work(settings, open_database(settings), listener, number=number)


def work(settings: Settings, database: Database, listener: socket.socket, *, number: int = 0) -> int:
    """Serves until told to stop; returns the exit code. Raises OSError if the private listener cannot be
    opened.
    """
    listeners = [listener]
    inside: Inside | None = None
    if database.dialect == "postgresql":
        private, inside = door.listen(settings.advertise_to, number=number)
        listeners.append(private)
    app = create_app(settings, database=database, inside=inside, worker=number)
    # After it has stopped, uvicorn raises the signal again; stopping when asked to is a success.
    signal.signal(signal.SIGTERM, lambda _number, _frame: None)
    server = GracefulServer(app)
    server.run(sockets=listeners)
    return 0 if server.started else EXIT_FAULT


def open_database(settings: Settings) -> Database:
    """The database of the settings, with this worker's share of the connections. Its schema is not looked
    at.
    """
    share = max(settings.database_connections // settings.workers, LEAST_CONNECTIONS)
    return Database(settings.database, synchronous=settings.sqlite_synchronous, connections=share)


def set_up_log(settings: Settings, *, worker: int | None = None) -> None:
    """The log of this process; with several workers each record says whose it is."""
    logs.set_up(settings, worker=worker)
