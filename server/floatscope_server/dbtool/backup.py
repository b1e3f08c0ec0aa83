"""A backup of a running server's database: one consistent state, checked before it takes its name."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.engine import URL, make_url

from floatscope_server.database import BUSY_TIMEOUT_MS
from floatscope_server.dbtool.files import put_in_place
from floatscope_server.dbtool.opening import CannotDo, sqlite_file

MOST_SAID = 2000  # characters of what a program said


@dataclass(frozen=True)
class Backup:
    """What was written. rows: of every table as counted in the copy; empty for PostgreSQL."""

    file: Path
    bytes: int
    schema: str
    rows: Mapping[str, int]


def back_up(url: str, file: Path, *, schema: str, replace: bool = False) -> Backup:
    """Writes the database at ``url`` to ``file``. Raises CannotDo; then ``file`` is as it was before."""
    if file.exists() and not replace:
        raise CannotDo(f"{file} exists already; name another file, or replace it with --replace")
    if not file.parent.is_dir():
        raise CannotDo(f"there is no folder {file.parent}")
    source = sqlite_file(url)
    if source is not None and file.exists() and source.samefile(file):
        raise CannotDo(f"{file} is the database itself")
    with put_in_place(file) as part:
        rows = {} if source is None else _sqlite(source, part, schema)
        if source is None:
            _postgresql(make_url(url), part)
        size = part.stat().st_size
    return Backup(file, size, schema, rows)


def _sqlite(source: Path, part: Path, schema: str) -> dict[str, int]:
    """VACUUM INTO reads one state without stopping writers, and takes nothing along of what was deleted."""
    try:
        with closing(sqlite3.connect(source, timeout=BUSY_TIMEOUT_MS / 1000)) as connection:
            connection.execute("vacuum into ?", (str(part),))
        with closing(sqlite3.connect(f"{part.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as copy:
            return _checked(copy, schema)
    except sqlite3.Error as error:
        raise CannotDo(f"the backup failed: {error}") from error


def _checked(copy: sqlite3.Connection, schema: str) -> dict[str, int]:
    said = [str(row[0]) for row in copy.execute("pragma integrity_check(10)")]
    if said != ["ok"]:
        raise CannotDo(f"the copy is damaged, so it was thrown away: {'; '.join(said)[:MOST_SAID]}")
    broken = copy.execute("pragma foreign_key_check").fetchone()
    if broken is not None:
        raise CannotDo(f"the copy has a row in {broken[0]} that refers to nothing; see: floatscope db verify")
    found = copy.execute("select version_num from alembic_version").fetchone()
    if found is None or found[0] != schema:
        raise CannotDo(f"the copy has schema {found and found[0]}, expected {schema}")
    names = [row[0] for row in copy.execute("select name from sqlite_master where type = 'table'")]
    return {
        name: int(copy.execute(f'select count(*) from "{name}"').fetchone()[0])  # noqa: S608
        for name in sorted(names)
        if not name.startswith(("sqlite_", "alembic_"))
    }


def _postgresql(url: URL, part: Path) -> None:
    dump, restore = shutil.which("pg_dump"), shutil.which("pg_restore")
    if dump is None or restore is None:
        raise CannotDo(
            "pg_dump and pg_restore are not installed here; on a machine that has them: "
            "pg_dump --format=custom --file FILE DATABASE"
        )
    _run([dump, "--format=custom", "--no-password", f"--file={part}", _conninfo(url)], url)
    _run([restore, "--list", str(part)], url)  # reads the whole table of contents


def _conninfo(url: URL) -> str:
    """The address without its password, which is handed over where no other user of the machine sees it."""
    return URL.create(
        "postgresql",
        username=url.username,
        host=url.host,
        port=url.port,
        database=url.database,
        query={name: value for name, value in url.query.items() if name != "password"},
    ).render_as_string(hide_password=False)


def _run(command: list[str], url: URL) -> None:
    given = url.query.get("password", url.password)  # as the server's own connection takes it
    password = {} if given is None else {"PGPASSWORD": given if isinstance(given, str) else given[-1]}
    done = subprocess.run(  # noqa: S603
        command, env={**os.environ, **password}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise CannotDo(f"{Path(command[0]).name} failed: {done.stderr.strip()[:MOST_SAID]}")
