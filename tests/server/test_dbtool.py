"""``floatscope db``: copies that are whole, moves that lose nothing, words when something is in the way."""

from __future__ import annotations

import json
import sqlite3
import stat
import subprocess
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from floatscope.protocol.runinfo import RunInfo
from floatscope_server import export, migrate, tables
from floatscope_server.data_lock import DataLock
from floatscope_server.database import Database
from floatscope_server.dbtool import moving
from floatscope_server.dbtool.cli import main
from floatscope_server.dbtool.opening import CannotDo
from floatscope_server.services import Services
from floatscope_server.settings import Settings
from floatscope_server.store import copying, runs
from floatscope_server.store.stretches import Span
from tests.server import postgres
from tests.server.every_table import fill, services_over
from tests.server.samples import TABLE, body, ingest, lines, rows

Run = Callable[..., tuple[int, str, str]]
_OUT = "postgresql://"


@pytest.fixture
def db(database: Database, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command on the fixture's database: exit code, what it printed, what it said of errors."""
    url = database.engine.url.render_as_string(hide_password=False)
    monkeypatch.setenv("FLOATSCOPE_DATABASE_URL", url)
    return runner(capsys)


def runner(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(list(arguments))
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return code, said.out, said.err

    return run


@pytest.fixture
def empty_postgres(postgres_url: str, request: pytest.FixtureRequest) -> str:
    """A new, empty PostgreSQL database."""
    return postgres.new_database(postgres_url, f"to_{abs(hash(request.node.nodeid)) % 10**9}")


def sums(database: Database) -> dict[str, Any]:
    with database.read() as c:
        return {t.name: (copying.summed(c, t), copying.last_number(c, t)) for t in copying.copied()}


def test_status_counts_what_is_there(db: Run, database: Database, settings: Settings) -> None:
    fill(database, settings)
    code, out, _err = db("status", "--json")
    told = json.loads(out)
    assert code == 0
    assert told["schema"] == {"is": migrate.newest(), "expected": migrate.newest()}
    assert told["runs"] == {"running": 1}
    assert told["rows"]["batch"] == 7
    assert told["steps"]["hot"] == 65
    assert told["left_overs"]["tiles"] == 0
    assert told["bytes"]["hot_blocks"] > 0
    code, out, _err = db("status")
    assert code == 0
    assert "1 running" in out


def test_status_of_an_older_schema_says_what_to_do(db: Run, database: Database) -> None:
    migrate.downgrade(database, revision="0004")
    code, out, _err = db("status")
    assert code == 0
    assert "0004 (expected" in out
    assert "floatscope db upgrade" in out
    assert db("verify")[0] == 2
    assert db("upgrade")[:2] == (0, f"schema 0004 -> {migrate.newest()}\n")


def test_move_to_the_other_database_and_back(
    db: Run, database: Database, settings: Settings, empty_postgres: str, tmp_path: Path
) -> None:
    fill(database, settings)
    with database.write() as c:  # a number that was used is never used again, wherever the data is
        runs.create(c, "gone", RunInfo(name="gone"), summary="", now=1.0)
        c.execute(tables.run.delete().where(tables.run.c.run_id == "gone"))
    before = sums(database)
    first = str(tmp_path / "first.db")
    there = empty_postgres if database.dialect == "sqlite" else f"sqlite:///{first}"
    code, out, err = db("move", "--to", there, "--json")
    assert code == 0, err
    assert json.loads(out)["rows"]["batch"] == 7
    assert "block: " in err
    other = Database(there.replace("postgresql://", "postgresql+psycopg://"))
    back = tmp_path / "back.db"
    moving.move(other, f"sqlite:///{back}", progress=lambda _line: None)
    again = Database(f"sqlite:///{back}")
    assert sums(other) == before
    assert sums(again) == before
    assert sums(database) == before, "the source is as it was"
    assert stat.S_IMODE(back.stat().st_mode) == 0o600
    for moved in (other, again):
        services = services_over(moved, settings)
        assert ingest(services, "r", 6, body(rows(60, 4))).expected_seq == 7
        services.lifecycle.open("new", RunInfo(name="new"))
        with moved.read() as c:
            assert runs.get(c, "new").id == 3, "1 and 2 were used"
        moved.close()


def test_a_move_that_fails_leaves_nothing(
    db: Run,
    database: Database,
    settings: Settings,
    empty_postgres: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill(database, settings)
    real = copying.add

    def torn(c: Any, table: Any, rows: list[dict[str, Any]]) -> None:
        if table.name == "batch":
            rows = [{**row, "rows": row["rows"] + 1} for row in rows]
        real(c, table, rows)

    monkeypatch.setattr(copying, "add", torn)
    there = empty_postgres if database.dialect == "sqlite" else f"sqlite:///{tmp_path / 'to.db'}"
    code, _out, err = db("move", "--to", there)
    assert code == 2
    assert "table batch came out differently" in err
    monkeypatch.undo()
    if database.dialect == "postgresql":
        assert list(tmp_path.glob("*to.db*")) == []
        return
    other = Database(there.replace("postgresql://", "postgresql+psycopg://"))
    with other.read() as c:
        assert copying.filled(c) == []
    moving.move(
        database, there.replace("postgresql://", "postgresql+psycopg://"), progress=lambda _line: None
    )
    assert sums(other) == sums(database)
    other.close()


def test_a_move_refuses_a_target_that_holds_something(
    db: Run, database: Database, settings: Settings, tmp_path: Path
) -> None:
    taken = tmp_path / "taken.db"
    taken.write_bytes(b"mine")
    code, _out, err = db("move", "--to", f"sqlite:///{taken}")
    assert (code, "exists already" in err) == (2, True)
    assert taken.read_bytes() == b"mine"
    code, _out, err = db("move", "--to", database.engine.url.render_as_string(hide_password=False))
    assert (code, "the same database" in err) == (2, True)
    for wrong in ("mysql://x/y", "nonsense", "sqlite://", "postgresql://u:hunter2@127.0.0.1:1/x"):
        code, _out, err = db("move", "--to", wrong)
        assert code == 2
        assert "hunter2" not in err


def test_a_target_with_rows_is_refused(database: Database, settings: Settings, empty_postgres: str) -> None:
    there = empty_postgres.replace("postgresql://", "postgresql+psycopg://")
    other = Database(there)
    migrate.upgrade(other)
    fill(other, settings)
    with pytest.raises(CannotDo, match="target is not empty"):
        moving.move(database, there, progress=lambda _line: None)
    other.close()


def test_a_source_that_changes_meanwhile_is_told(
    database: Database, settings: Settings, tmp_path: Path
) -> None:
    fill(database, settings)
    services = services_over(database, settings)

    def serve_on(line: str) -> None:
        if line.startswith("channel"):
            ingest(services, "r", 6, body(rows(60, 4)))

    with pytest.raises(CannotDo, match="changed while it was copied"):
        moving.move(database, f"sqlite:///{tmp_path / 'to.db'}", progress=serve_on)
    assert list(tmp_path.glob("*to.db*")) == []


def test_a_backup_is_one_state_of_a_database_that_is_written(
    sqlite_database: Database,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    db = runner(capsys)
    monkeypatch.setenv("FLOATSCOPE_DATA_DIR", str(tmp_path))
    fill(sqlite_database, settings)
    services = services_over(sqlite_database, settings)
    over = threading.Event()
    sent: list[object] = []

    def write() -> None:
        while not over.is_set():
            seq = 6 + len(sent)
            sent.append(ingest(services, "r", seq, body(rows(seq * 10, 10))))

    writer = threading.Thread(target=write)
    writer.start()
    file = tmp_path / "backup.db"
    try:
        while len(sent) < 3:
            over.wait(0.01)
        before = len(sent)
        code, out, err = db("backup", str(file), "--json")
    finally:
        over.set()
        writer.join()
    assert code == 0, err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    copy = Database(f"sqlite:///{file}")
    with copy.read() as c:
        run = runs.get(c, "r")
        batches = c.execute(select(func.count()).select_from(tables.batch)).scalar_one()
        assert run.arrivals == batches == sum(at.next_seq for at in runs.positions(c, run.id))
    assert batches >= 7 + before
    assert json.loads(out)["rows"]["batch"] == batches
    copy.close()
    code, _out, err = db("backup", str(file))
    assert (code, "exists already" in err) == (2, True)
    assert db("backup", str(file), "--replace")[0] == 0
    code, _out, err = db("backup", str(tmp_path / "floatscope.db"), "--replace")
    assert (code, "is the database itself" in err) == (2, True)
    assert [p.name for p in tmp_path.iterdir() if "part" in p.name] == []


def test_a_damaged_source_gives_no_backup(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "floatscope.db"
    database = Database(f"sqlite:///{file}")
    migrate.upgrade(database)
    fill(database, settings)
    database.empty_log()
    database.close()
    content = bytearray(file.read_bytes())
    for page in range(20, 60):
        content[page * 4096 : page * 4096 + 200] = b"\x55" * 200
    file.write_bytes(content)
    monkeypatch.setenv("FLOATSCOPE_DATA_DIR", str(tmp_path))
    code, _out, err = runner(capsys)("backup", str(tmp_path / "copy.db"))
    assert code == 2
    assert "the backup failed" in err or "damaged" in err or "malformed" in err
    assert [path.name for path in tmp_path.glob("*copy*")] == []


def test_a_dump_of_postgresql_can_be_restored(
    postgres_url: str,
    empty_postgres: str,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = postgres.new_database(postgres_url, "dumped")
    database = Database(source.replace("postgresql://", "postgresql+psycopg://"))
    migrate.upgrade(database)
    fill(database, settings)
    monkeypatch.setenv("FLOATSCOPE_DATABASE_URL", source)
    file = tmp_path / "dump"
    code, _out, err = runner(capsys)("backup", str(file))
    assert code == 0, err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    restored = ["pg_restore", "--no-owner", "--exit-on-error", f"--dbname={empty_postgres}", str(file)]
    assert subprocess.run(restored, capture_output=True, text=True, check=False).returncode == 0
    other = Database(empty_postgres.replace("postgresql://", "postgresql+psycopg://"))
    assert sums(other) == sums(database)
    monkeypatch.setenv("PATH", "/nowhere")
    code, _out, err = runner(capsys)("backup", str(tmp_path / "another"))
    assert (code, "pg_dump" in err, list(tmp_path.glob("*another*"))) == (2, True, [])
    other.close()
    database.close()


def test_downgrades_refuse_to_lose_anything(db: Run, database: Database, settings: Settings) -> None:
    fill(database, settings, leave_empty=("chunk", "tile", "level", "garbage"))
    code, _out, err = db("downgrade", "0004")
    assert code == 2
    for words in ("1 silences", "1 rule settings", "lines of the audit log", "--discard", "backup"):
        assert words in err
    code, _out, err = db("downgrade", "0000")
    assert (code, "there is no schema" in err) == (2, True)
    code, out, err = db("downgrade", "0004", "--discard")
    assert (code, out) == (0, f"schema {migrate.newest()} -> 0004\n"), err
    assert db("upgrade")[0] == 0
    with database.read() as c:
        assert runs.get(c, "r").arrivals == 7


def test_unpack_makes_way_for_the_older_schema(db: Run, database: Database, settings: Settings) -> None:
    services = services_over(database, settings)
    services.lifecycle.open("r", RunInfo(name="r", tensors=TABLE))
    for seq in range(4):
        ingest(services, "r", seq, body(rows(seq * 40, 40)))
    with database.read() as c:
        run = runs.get(c, "r")
    assert services.compactor.rewriter.rewrite(run.id, 0, whole=True) == 1
    before = exported(services)
    code, _out, err = db("downgrade", "0004", "--discard")
    assert (code, "floatscope db unpack" in err) == (2, True)
    code, out, err = db("unpack", "--json")
    assert (code, json.loads(out)) == (0, {"chunks": 1}), err
    assert exported(services) == before
    assert db("verify")[0] == 0
    assert db("downgrade", "0004", "--discard")[0] == 0
    assert db("upgrade")[0] == 0
    assert exported(services) == before


def exported(services: Services) -> list[str]:
    with services.database.read() as c:
        run = runs.get(c, "r")
    found = export.rows(services.database, run.id, (0,), Span(0, 10**9), tensor_tables=services.tensor_tables)
    return lines(list(found))


def test_what_needs_the_file_for_itself_refuses_while_a_server_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = Database(f"sqlite:///{tmp_path / 'floatscope.db'}")
    migrate.upgrade(database)
    database.close()
    lock = DataLock(tmp_path)
    lock.take()
    there = f"sqlite:///{tmp_path / 'to.db'}"
    for arguments in (["compact"], ["unpack"], ["move", "--to", there], ["downgrade", "0008"]):
        code, _out, err = runner(capsys)(*arguments, "--data-dir", str(tmp_path))
        assert (code, "stop it first" in err) == (2, True)
    assert runner(capsys)("status", "--data-dir", str(tmp_path))[0] == 0
    lock.release()
    assert runner(capsys)("compact", "--data-dir", str(tmp_path))[0] == 0


def test_compact_gives_room_back(db: Run, database: Database, settings: Settings) -> None:
    fill(database, settings, leave_empty=("garbage",))
    services = services_over(database, settings)
    services.lifecycle.delete("r")
    code, out, err = db("purge", "--json")
    assert (code, json.loads(out)["removed"]) == (0, 1), err
    code, out, err = db("compact", "--json")
    assert code == 0, err
    told = json.loads(out)
    assert told["after_bytes"] <= told["before_bytes"] or database.dialect == "postgresql"


def test_a_file_from_before_gives_room_back_after_it_was_compacted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "floatscope.db"
    with closing(sqlite3.connect(file)) as old:
        old.execute("pragma auto_vacuum=none")
        old.execute("create table filler (data blob)")
    database = Database(f"sqlite:///{file}")
    migrate.upgrade(database)
    with database.read() as c:
        assert c.exec_driver_sql("pragma auto_vacuum").scalar_one() == 0
    database.close()
    code, _out, err = runner(capsys)("compact", "--data-dir", str(tmp_path))
    assert code == 0, err
    with closing(sqlite3.connect(file)) as now:
        assert now.execute("pragma auto_vacuum").fetchone() == (2,)


def test_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _out, err = runner(capsys)("status", "--data-dir", str(tmp_path / "none"))
    assert (code, "--data-dir" in err) == (2, True)
    (tmp_path / "floatscope.db").write_bytes(b"not a database at all" * 1000)
    code, _out, err = runner(capsys)("status", "--data-dir", str(tmp_path))
    assert (code, "not a database" in err) == (2, True)
    for arguments in ([], ["nothing"], ["move"], ["backup"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
    for name in ("status", "upgrade", "downgrade", "backup", "verify", "move", "compact", "unpack", "purge"):
        with pytest.raises(SystemExit) as ended:
            main([name, "--help"])
        assert ended.value.code == 0
        assert f"example:\n  floatscope db {name}" in capsys.readouterr().out
