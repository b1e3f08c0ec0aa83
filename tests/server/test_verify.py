"""``floatscope db verify``: silent about what is right, and precise about what is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, func, insert, select, update

from floatscope.protocol.runinfo import RunInfo
from floatscope_server import tables
from floatscope_server.codec import pack, unpack
from floatscope_server.database import Database
from floatscope_server.dbtool.cli import main
from floatscope_server.dbtool.verify import Counted, look, verify
from floatscope_server.services import Services
from floatscope_server.settings import Settings
from floatscope_server.store import runs
from floatscope_server.store.kinds import ROWS, SCALARS, STAT
from tests.server.every_table import services_over
from tests.server.samples import TABLE, body, ingest, rows

Break = Callable[[Connection, int], object]


@pytest.fixture
def stored(database: Database, settings: Settings) -> Services:
    """Run r: rank 0 with three chunks (one of a second segment) and hot batches, rank 1 hot with a hole."""
    services = services_over(database, settings)
    services.lifecycle.open("r", RunInfo(name="r", tensors=TABLE))
    seq = 0
    for first, count in ((0, 300), (300, 300), (200, 200)):
        for at in range(first, first + count, 50):
            steps = rows(at, 50)
            steps[0]["tensors"] = {name: {"amax": 1.0, "hist_log2": list(range(64))} for name in TABLE}
            ingest(services, "r", seq, body(steps))
            seq += 1
        with database.read() as c:
            run = runs.get(c, "r")
        services.compactor.rewriter.rewrite(run.id, 0, whole=True)
    for at in range(400, 440, 20):
        ingest(services, "r", seq, body(rows(at, 20)))
        seq += 1
    ingest(services, "r", 0, body(rows(0, 5)), rank=1)
    ingest(services, "r", 1, b'{"steps": [], "lost": {"first_step": 5, "last_step": 9}}', rank=1)
    return services


def faults(database: Database, *, full: bool = True) -> list[str]:
    found = verify(database, full=full, objects=None, counted=Counted())
    return [str(fault) for fault in found]


def test_nothing_is_wrong(stored: Services, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    database = stored.database
    counted = Counted()
    assert list(verify(database, full=True, objects=None, counted=counted)) == []
    with database.read() as c:
        chunks = c.execute(select(func.count()).select_from(tables.chunk)).scalar_one()
        levels = c.execute(select(func.count()).select_from(tables.level)).scalar_one()
    assert (counted.ranks, counted.batches, counted.chunks, counted.levels) == (2, 20, chunks, levels)
    assert chunks >= 2
    assert levels > 0
    monkeypatch.setenv("FLOATSCOPE_DATABASE_URL", database.engine.url.render_as_string(hide_password=False))
    assert main(["verify"]) == 0
    assert "nothing is wrong" in capsys.readouterr().out
    with database.write() as c:
        c.execute(update(tables.run).values(last_loss_json="{"))
    assert main(["verify", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["ok"], told["faults"][0]["where"]) == (False, "run.last_loss_json of 1")


def change(table: str, **where: Any) -> Callable[[Callable[[bytes], bytes]], Break]:
    """A break that replaces the bytes of one row."""
    chosen = tables.metadata.tables[table]

    def of(new: Callable[[bytes], bytes]) -> Break:
        def breaking(c: Connection, run: int) -> object:
            key = [chosen.c.run == run, *(chosen.c[name] == value for name, value in where.items())]
            row = c.execute(select(chosen).where(*key).limit(1)).mappings().one()
            this = [column == row[column.name] for column in chosen.primary_key.columns]
            data = new(row["data"])
            length = {"length": len(data)} if "length" in chosen.c else {}
            return c.execute(update(chosen).where(*this).values(data=data, **length))

        return breaking

    return of


def drop(table: str, **where: Any) -> Break:
    chosen = tables.metadata.tables[table]
    return lambda c, run: c.execute(
        chosen.delete().where(chosen.c.run == run, *(chosen.c[n] == v for n, v in where.items()))
    )


def shifted(data: bytes) -> bytes:
    """The same arrays, the last values a little larger."""
    first, *rest = unpack(data)
    return pack([(first + 1).astype(first.dtype), *rest])


def spiked(data: bytes) -> bytes:
    """A level whose maximum is another one."""
    arrays = [array.copy() for array in unpack(data)]
    arrays[3].flat[0] = 12345.0
    return pack(arrays)


BROKEN: list[tuple[Break, str]] = [
    (change("tile", rank=0, kind=STAT, name="amax")(lambda _d: b"\x01garbage"), "run r rank 0 steps "),
    (change("tile", rank=0, kind=STAT, name="amax")(shifted), "is not what its tiles say"),
    (change("tile", rank=0, kind=SCALARS, name="loss")(shifted), "'loss' part 0 is not what its tiles"),
    (change("tile", rank=0, kind=ROWS)(shifted), "has other steps than its row says"),
    (change("level", rank=0, kind=STAT, name="amax")(spiked), "'amax' part 0 is not what its tiles say"),
    (change("level", rank=0, kind=SCALARS, name="loss")(lambda _d: b""), "cannot be read"),
    (drop("tile", rank=0, kind=ROWS), "its steps are missing"),
    (drop("tile", rank=0, kind=STAT, name="amax"), "has no tile"),
    (drop("block", rank=0, kind=SCALARS), "its scalars are missing"),
    (drop("block", rank=1), "run r rank 1 steps 0-4 (batch 0): its steps are missing"),
    (change("block", rank=1, kind=ROWS)(lambda _d: b"\x01"), "run r rank 1 steps 0-4"),
    (drop("batch", rank=1, seq=1), "batches [1] are missing"),
    (drop("chunk", rank=0, segment=1), "are neither hot nor in a chunk"),
    (
        lambda c, run: c.execute(update(tables.rank).where(tables.rank.c.rank == 1).values(hot_rows=9)),
        "counts 9 steps in hot batches, these have 5",
    ),
    (
        lambda c, run: c.execute(update(tables.chunk).values(rows=tables.chunk.c.rows + 1)),
        "its batches have",
    ),
    (
        lambda c, run: c.execute(update(tables.tensor_table).values(hash="0" * 64)),
        "does not have its hash",
    ),
    (change("frame", rank=0)(lambda _d: b"\x02"), "run r rank 0 frame"),
]


def test_what_is_broken_is_named(stored: Services) -> None:
    """Each in a transaction that is undone."""
    missed = []
    for breaking, words in BROKEN:
        with stored.database.write() as c:
            undo = c.begin_nested()
            breaking(c, runs.get(c, "r").id)
            found = [str(fault) for fault in look(c, full=True, objects=None, counted=Counted())]
            undo.rollback()
        if not any(words in fault for fault in found):
            missed.append((words, found))
    assert missed == []


def test_tiles_that_lie_in_no_store(stored: Services) -> None:
    with stored.database.write() as c:
        where = tables.tile.c.kind == STAT
        c.execute(update(tables.tile).where(where).values(data=None, object="1/0/5/2/amax/0-a", start=0))
    assert all("object store" in fault for fault in faults(stored.database))
    assert faults(stored.database) != []


def test_references_to_nothing(sqlite_database: Database) -> None:
    raw = sqlite_database.engine.raw_connection()
    raw.cursor().execute("pragma foreign_keys=off")
    raw.cursor().execute("insert into verdict (run, body_json, updated) values (77, '{}', 1.0)")
    raw.cursor().execute("pragma foreign_keys=on")
    raw.close()
    assert faults(sqlite_database) == [
        "database: row 77 of table verdict refers to a row of run that is not there"
    ]
    with sqlite_database.write() as c:
        c.execute(insert(tables.secret).values(name="x", value=b""))
