"""Migrations with rows in every table: nothing is changed by going up and down, nothing is lost unsaid."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import MetaData, func, insert, select, text

from floatscope_server import migrate, tables
from floatscope_server.database import Database
from floatscope_server.migrate import SchemaError
from floatscope_server.settings import Settings
from floatscope_server.store import checking, runs
from tests.server.every_table import count, fill, made_up
from tests.server.test_migrations import VERSIONS

Rows = dict[str, list[dict[str, Any]]]
OLD_STARTS = ("0002", "0004", "0006")  # the others are passed on the way
IN_CHUNKS = ("chunk", "tile", "level", "garbage")


def reflected(database: Database) -> MetaData:
    found = MetaData()
    found.reflect(database.engine)
    found.remove(found.tables["alembic_version"])
    return found


def dump(database: Database, columns: dict[str, list[str]] | None = None) -> Rows:
    """All rows; columns: only these of these tables."""
    found = reflected(database)
    out: Rows = {}
    with database.read() as c:
        for name, table in found.tables.items():
            wanted = list(table.c.keys()) if columns is None else columns.get(name)
            if wanted is not None:
                rows = c.execute(select(*(table.c[column] for column in wanted))).mappings()
                out[name] = sorted((dict(row) for row in rows), key=repr)
    return out


def columns_of(database: Database) -> dict[str, list[str]]:
    return {name: list(table.c.keys()) for name, table in reflected(database).tables.items()}


@pytest.mark.parametrize("version", OLD_STARTS)
def test_rows_of_every_version_are_the_same_after_up_and_down(database_url: str, version: str) -> None:
    database = Database(database_url)
    migrate.upgrade(database, revision=version)
    found = reflected(database)
    with database.write() as c:
        for table in found.sorted_tables:
            c.execute(insert(table).values(**made_up(c, table)))
    old, columns = dump(database), columns_of(database)
    assert all(len(rows) == 1 for rows in old.values())
    migrate.upgrade(database)
    assert dump(database, columns) == old
    with database.read() as c:
        assert checking.structure(c) == []
    if version < "0005":
        with database.write() as c:  # the older schema knows no chunks: there were none
            assert [count(c, tables.metadata.tables[name]) for name in IN_CHUNKS] == [0, 0, 0, 0]
    if version < "0009" or "scopes_json" in columns["token"]:
        migrate.downgrade(database, revision=version)
        assert columns_of(database) == columns
        assert dump(database) == old
    database.close()


def test_a_filled_database_goes_down_step_by_step_and_up_again(
    database: Database, settings: Settings
) -> None:
    fill(database, settings, leave_empty=IN_CHUNKS)
    for version in reversed(VERSIONS[3:-1]):
        before = dump(database)
        migrate.downgrade(database, revision=version)
        after = dump(database)
        assert set(after) <= set(before)
        for name, rows in after.items():
            if name != "token":
                kept = [{column: row[column] for column in rows[0]} for row in before[name]] if rows else []
                assert rows == sorted(kept, key=repr), (version, name)
    migrate.upgrade(database)
    with database.read() as c:
        run = runs.get(c, "r")
        assert (run.name, run.arrivals) == ("r \u00e9\u4e2d", 7)
        hot = dict(c.execute(select(tables.rank.c.rank, tables.rank.c.hot_rows)).all())
        assert hot == {0: 60, 3: 5}, "counted anew"
        size = c.execute(select(func.sum(func.length(tables.block.c.data)))).scalar_one()
        assert c.execute(select(tables.run.c.bytes)).scalar_one() == size


def test_going_back_refuses_what_the_older_schema_cannot_hold(database: Database, settings: Settings) -> None:
    fill(database, settings)
    before = dump(database)
    for table, words in (("chunk", "floatscope db unpack"), ("run", "being removed"), ("garbage", "objects")):
        with pytest.raises(SchemaError, match=words):
            migrate.downgrade(database, revision="0004")
        assert dump(database) == before, "nothing was changed"
        with database.write() as c:
            if table == "run":
                c.execute(tables.run.update().values(deleted=None))
            else:
                c.execute(tables.metadata.tables[table].delete())
            if table == "chunk":
                c.execute(tables.tile.delete())
                c.execute(tables.level.delete())
                c.execute(tables.run.update().values(deleted=1.0))
        before = dump(database)
    migrate.downgrade(database, revision="0004")


def test_only_tokens_that_may_do_everything_are_tokens_of_the_older_schema(database: Database) -> None:
    limited: list[dict[str, Any]] = [{}, {"expires": 9e9}, {"revoked": 1.0}, {"scopes_json": '["ingest"]'}]
    with database.write() as c:
        for number, changes in enumerate(limited):
            values = {"scopes_json": '["admin"]', "created": 1.0, "name": "n", "id": str(number)}
            c.execute(insert(tables.token).values(hash=f"{number}" * 64, **(values | changes)))
    migrate.downgrade(database, revision="0008")
    with database.read() as c:
        assert c.execute(text("select hash from token")).scalars().all() == ["0" * 64]
