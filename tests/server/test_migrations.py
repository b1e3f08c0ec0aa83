"""The schema: migrations lead exactly to the tables, down and up, on both databases, with data."""

from __future__ import annotations

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect, text

from floatscope.protocol import wire_json
from floatscope.protocol.runinfo import RunInfo
from floatscope_server import migrate, tables
from floatscope_server.database import Database
from floatscope_server.migrate import SchemaError
from floatscope_server.store import batches, runs
from floatscope_server.store.batches import BatchKey

VERSIONS = tuple(f"{number:04}" for number in range(1, 12))


def fill(database: Database) -> None:
    batch = wire_json.decode(b'{"steps": [{"step": 0, "loss": "NaN"}]}', rank=0)
    with database.write() as c:
        runs.create(c, "r", RunInfo(name="r"), summary="", now=1.0)
        run = runs.get(c, "r")
        key = BatchKey(0, 0, 1, 0, 1, 0, 0, False, None, True)
        assert batches.write(c, run.id, key, batches.packed(batch), digest=b"x" * 32, received=1.0, glance={})


def test_the_migrations_make_exactly_the_tables(database: Database) -> None:
    with database.read() as c:
        assert compare_metadata(MigrationContext.configure(c), tables.metadata) == []


def test_down_and_up_with_data(database: Database) -> None:
    fill(database)
    migrate.downgrade(database, revision="0002")
    with database.read() as c:
        assert c.execute(text("select count(*) from batch")).scalar() == 1
    migrate.upgrade(database)
    with database.read() as c:
        assert runs.get(c, "r").name == "r"
    migrate.downgrade(database, revision="base")
    assert inspect(database.engine).get_table_names() == ["alembic_version"]
    migrate.upgrade(database)
    fill(database)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_can_be_the_start(database_url: str, version: str) -> None:
    database = Database(database_url)
    migrate.upgrade(database, revision=version)
    migrate.upgrade(database)
    fill(database)
    database.close()


def test_a_later_schema_is_refused_with_what_to_do(sqlite_database: Database) -> None:
    with sqlite_database.write() as c:
        c.execute(text("update alembic_version set version_num = '9999'"))
    with pytest.raises(SchemaError, match=r"schema 9999.*start the version that made it"):
        migrate.upgrade(sqlite_database)


def test_migrations_are_found_beside_the_package_or_in_the_checkout() -> None:
    found = migrate.migrations_dir()
    assert (found / "env.py").is_file()
    assert sorted(path.stem[:4] for path in Path(found, "versions").glob("0*.py")) == list(VERSIONS)
