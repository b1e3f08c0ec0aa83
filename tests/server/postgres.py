"""A PostgreSQL server of our own, started from the installed programs on a private port and thrown away."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.server.live import free_port, wait_for

WHAT_TO_DO = (
    "PostgreSQL's server programs are not installed: apt-get install postgresql (or set POSTGRES_BIN to them)"
)
UNPRIVILEGED = ("postgres", "nobody")


def programs() -> Path | None:
    """Folder with initdb and postgres, or None."""
    given = os.environ.get("POSTGRES_BIN")
    on_path = shutil.which("initdb")
    candidates = [Path(given)] if given else []
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    candidates += [Path(on_path).resolve().parent] if on_path else []
    return next((folder for folder in candidates if (folder / "initdb").is_file()), None)


@contextmanager
def cluster(*, durable: bool = False) -> Iterator[str]:
    """URL of an empty database server; without the programs the tests fail and say what to install.

    durable: commits reach the disk, as they must where it is measured.
    """
    found = programs()
    if found is None:
        pytest.fail(WHAT_TO_DO)
    folder = Path(tempfile.mkdtemp(prefix="floatscope-pg-"))
    user = _unprivileged(folder)
    port = free_port()
    try:
        _run([found / "initdb", "-D", folder / "data", "-U", "floatscope", "-A", "trust", "-E", "UTF8"], user)
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder}"
        options += f" -c fsync={'on' if durable else 'off'}"
        options += "" if durable else " -c synchronous_commit=off -c full_page_writes=off"
        command: list[str | Path] = [found / "postgres", "-D", folder / "data", *options.split()]
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(command, stdout=log, stderr=log, user=user, cwd=folder)
        try:
            url = f"postgresql://floatscope@127.0.0.1:{port}/postgres"
            wait_for(lambda: _answers(url), seconds=30)
            yield url
        finally:
            server.send_signal(signal.SIGQUIT)  # at once: nothing in it is wanted again
            server.wait(timeout=30)
    finally:
        subprocess.run(["rm", "-rf", folder], check=False)  # a hundred thousand files and more


def new_database(url: str, name: str) -> str:
    """URL of a new, empty database on the server."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'create database "{name}"')
    return url.rpartition("/")[0] + f"/{name}"


def _answers(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def _run(command: list[str | Path], user: str | None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, user=user, cwd="/", check=False)
    assert done.returncode == 0, done.stderr


def _unprivileged(folder: Path) -> str | None:
    """PostgreSQL refuses to run as root: then an existing user without rights owns the folder."""
    if os.getuid() != 0:
        return None
    for name in UNPRIVILEGED:
        try:
            shutil.chown(folder, name)
        except LookupError:
            continue
        return name
    raise AssertionError(f"none of the users {UNPRIVILEGED} exists to run PostgreSQL as")
