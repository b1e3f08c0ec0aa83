"""Databases and servers for the tests of the server."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from floatscope_server import migrate
from floatscope_server.database import Database
from floatscope_server.settings import Settings
from tests.server import postgres
from tests.server.live import TOKEN, Client, in_process

Serve = Callable[..., Client]
_numbers = itertools.count()


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A PostgreSQL server for the whole session."""
    with postgres.cluster() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a new, empty database of either kind, as SQLAlchemy wants it."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'floatscope.db'}"
    url = postgres.new_database(request.getfixturevalue("postgres_url"), f"test_{next(_numbers)}")
    return url.replace("postgresql://", "postgresql+psycopg://")


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A database with the current schema."""
    opened = Database(database_url)
    migrate.upgrade(opened)
    yield opened
    opened.close()


@pytest.fixture
def sqlite_database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(f"sqlite:///{tmp_path / 'floatscope.db'}", synchronous="NORMAL")
    migrate.upgrade(opened)
    yield opened
    opened.close()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings of a server with a known token, that may call webhooks on this machine."""
    return Settings(
        data_dir=tmp_path, token=SecretStr(TOKEN), allow_private_webhooks=True, sqlite_synchronous="NORMAL"
    )


@pytest.fixture
def serve(settings: Settings) -> Iterator[Serve]:
    """Starts servers in this process; they are stopped at the end of the test."""
    with ExitStack() as stack:

        def start(changes: dict[str, Any] | None = None, **parts: Any) -> Client:
            return stack.enter_context(in_process(settings.model_copy(update=changes or {}), **parts))

        yield start


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """One server with all its real parts, for tests that only need some server."""
    folder = tmp_path_factory.mktemp("shared")
    settings = Settings(data_dir=folder, token=SecretStr(TOKEN), sqlite_synchronous="NORMAL")
    with in_process(settings) as found:
        yield found


@pytest.fixture
def client(shared_server: Client) -> Client:
    """The shared server without any run."""
    for run in shared_server.get("/api/v1/runs?limit=500").json["items"]:
        assert shared_server.call("DELETE", f"/api/v1/runs/{run['run_id']}").status == 200
    return shared_server
