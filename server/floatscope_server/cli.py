"""``floatscope serve``: starts the server."""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from floatscope_server import migrate
from floatscope_server.access import FirstToken, first_token
from floatscope_server.data_lock import AlreadyServed, DataLock
from floatscope_server.database import Database, file_of
from floatscope_server.migrate import SchemaError
from floatscope_server.notify.environment import check_environment_url
from floatscope_server.notify.targets import WebhookRefused
from floatscope_server.objects.opening import open_objects
from floatscope_server.settings import DEFAULT_PORT, Settings, SettingsError, load, misspelt
from floatscope_server.worker_process import open_database, set_up_log, work, work_in_own_process
from floatscope_server.workers import door
from floatscope_server.workers.processes import Supervisor

EXIT_USAGE = 2
BACKLOG = 2048
GUESSABLE_CHARS = 20  # a token with fewer characters is spoken of at start

_log = logging.getLogger(__name__)

_EXAMPLES = """examples:
  floatscope serve
  floatscope serve --host 0.0.0.0 --port 8321 --data-dir /var/lib/floatscope
  FLOATSCOPE_DATABASE_URL=postgresql://user:password@db/floatscope floatscope serve
  FLOATSCOPE_DATABASE_URL=... floatscope serve --workers 4 --advertise http://10.0.0.5:8322
  FLOATSCOPE_SLACK_WEBHOOK_URL=https://hooks.slack.com/services/... floatscope serve

Settings are FLOATSCOPE_* variables or keys of a TOML file: the same names in lower case, without the prefix.
The first start makes a token, keeps it in <data-dir>/token and prints an address with it."""


class CannotStart(Exception):
    """Something outside the program is in the way; the message says what and what to do."""


def main(argv: Sequence[str]) -> int:
    """Runs the server until it is told to stop.

    Returns 0, 2 if it cannot start as asked, 1 if starting failed in another way.
    """
    args = _parser().parse_args(list(argv))
    try:
        settings = load(_overrides(args), config=args.config)
        return serve(settings)
    except (SettingsError, CannotStart, SchemaError, WebhookRefused) as error:
        print(f"floatscope serve: {error}", file=sys.stderr)
        return EXIT_USAGE


def serve(settings: Settings) -> int:
    """Opens everything, says where it is, and serves. Raises CannotStart and what its parts raise."""
    set_up_log(settings)
    for name, meant in misspelt(os.environ):
        _log.warning("%s is no setting and is passed over; is %s meant?", name, meant)
    file = _embedded_file(settings)
    if file is not None and (settings.workers > 1 or settings.advertise is not None):
        raise CannotStart(
            "several workers need PostgreSQL: set FLOATSCOPE_DATABASE_URL to postgresql://..., "
            "or leave out --workers and --advertise"
        )
    if settings.slack_webhook_url is not None:
        url = settings.slack_webhook_url.get_secret_value()
        check_environment_url(url, allow_private=settings.allow_private_webhooks)
    open_objects(settings)  # workers open it later, each its own; what is wrong is better said at once
    _prepare_data_dir(settings.data_dir)
    if settings.advertise is not None:
        _check_private_listeners(settings)
    with _data_of_one_server(file), _listen(settings.host, settings.port) as listener:
        database = _open_database(settings, file)
        has_token = settings.token is not None
        first = first_token(database, data_dir=settings.data_dir, from_environment=has_token, now=time.time())
        _greet(settings, first)
        if settings.workers == 1:
            return work(settings, database, listener)
        database.close()
        return Supervisor(work_in_own_process, settings.model_dump(), listener, count=settings.workers).run()


def _check_private_listeners(settings: Settings) -> None:
    """Workers open them later, each its own; what is wrong with the address is better said at once."""
    try:
        for number in range(settings.workers):
            door.listen(settings.advertise_to, number=number)[0].close()
    except OSError as error:
        raise CannotStart(
            f"cannot listen for other workers at {settings.advertise_to} ({error.strerror or error}); "
            "--advertise takes an address of this machine, and as many free ports from there as workers"
        ) from error


def _embedded_file(settings: Settings) -> Path | None:
    """SQLite's file, by whichever setting it is named; None for PostgreSQL."""
    try:
        return file_of(settings.database)
    except ValueError as error:
        raise CannotStart(f"FLOATSCOPE_DATABASE_URL: {error}") from error


@contextmanager
def _data_of_one_server(file: Path | None) -> Iterator[None]:
    """On SQLite one server at a time uses the directory; on PostgreSQL any number may."""
    if file is None:
        yield
        return
    if not file.parent.is_dir():
        raise CannotStart(f"there is no folder {file.parent} for the database")
    lock = DataLock(file.parent)
    try:
        lock.take()
    except AlreadyServed as error:
        raise CannotStart(
            f"another floatscope server ({error}) uses the data directory {file.parent}; "
            "stop it, choose another directory with --data-dir, or let several servers share PostgreSQL "
            "with FLOATSCOPE_DATABASE_URL"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="floatscope serve",
        description="Starts the server: ingest, live diagnosis, dashboard, alerts.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, help=f"port to listen on (default {DEFAULT_PORT})")
    parser.add_argument("--data-dir", type=Path, help="where data is kept (default ./floatscope-data)")
    parser.add_argument(
        "--workers",
        type=int,
        help="processes that serve, all behind one address (default 1; needs PostgreSQL)",
    )
    parser.add_argument(
        "--advertise", help="where workers of other machines reach this one: http://host:port"
    )
    parser.add_argument("--config", type=Path, help="a TOML file with settings")
    return parser


def _overrides(args: argparse.Namespace) -> dict[str, Any]:
    given = {name: getattr(args, name) for name in ("host", "port", "data_dir", "workers", "advertise")}
    return {key: value for key, value in given.items() if value is not None}


def _prepare_data_dir(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = path / f".probe-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise CannotStart(
            f"the data directory {path} cannot be written ({error.strerror or error}); "
            "choose another one with --data-dir or FLOATSCOPE_DATA_DIR"
        ) from error


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, proto, _name, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, proto)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise CannotStart(
            f"cannot listen on {host}:{port} ({error.strerror or error}); is another server running there? "
            "Choose another port with --port or FLOATSCOPE_PORT"
        ) from error
    return listener


def _open_database(settings: Settings, file: Path | None) -> Database:
    try:
        if file is not None:
            _keep_private(file)
        database = open_database(settings)
        migrate.upgrade(database)
    except ModuleNotFoundError as error:
        needs = f"FLOATSCOPE_DATABASE_URL needs the package {error.name!r}"
        raise CannotStart(f"{needs}, not installed here: pip install 'floatscope[postgres]'") from error
    except (SQLAlchemyError, ValueError, OSError) as error:
        what = "FLOATSCOPE_DATABASE_URL" if settings.database_url is not None else str(settings.data_dir)
        reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        raise CannotStart(f"the database of {what} cannot be opened: {reason}") from error
    return database


def _keep_private(file: Path) -> None:
    """Only its owner can read the database and the files beside it: they hold names, texts and webhook
    addresses. It must be so before SQLite opens it, which makes the files beside it with its mode.
    """
    file.touch(mode=0o600)
    for each in (file, *(file.with_name(file.name + end) for end in ("-wal", "-shm"))):
        if each.exists():
            each.chmod(0o600)


def _greet(settings: Settings, first: FirstToken) -> None:
    lines = [f"floatscope is serving at {settings.public_url}"]
    if first.token is not None:
        lines.append(f"Open   {settings.public_url}/?token={first.token}")
        lines.append(f"The token is kept in {first.path}; agents send it as FLOATSCOPE_TOKEN.")
    elif first.from_environment:
        lines.append("The token is the one in FLOATSCOPE_TOKEN.")
        if settings.token is not None and len(settings.token.get_secret_value()) < GUESSABLE_CHARS:
            lines.append("It is short enough to be guessed; make a longer one with: openssl rand -hex 24")
    elif first.path.is_file():
        lines.append(f"The token is in {first.path}.")
    else:
        lines.append("The token was made on another start; if it is lost, set FLOATSCOPE_TOKEN to come in.")
    print("\n".join(lines), flush=True)
