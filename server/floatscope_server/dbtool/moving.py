"""Moves everything from one database to an empty one: all of it or nothing, checked row by row.

The source is only read, in one snapshot. A PostgreSQL target is filled in one transaction, an SQLite target
in a file beside its place, which takes its name at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from floatscope_server import migrate
from floatscope_server.database import Database
from floatscope_server.dbtool.files import put_in_place
from floatscope_server.dbtool.opening import CannotDo, connect, reason, shown, sqlite_file
from floatscope_server.store import copying
from floatscope_server.store.copying import Sum

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Moved:
    """Rows of every table that was copied."""

    rows: dict[str, int]


def move(source: Database, to: str, *, progress: Progress) -> Moved:
    """Copies all tables of ``source`` to the database at ``to``, which must be empty. Raises CannotDo."""
    if shown(to) == shown(str(source.engine.url)):
        raise CannotDo("source and target are the same database")
    with source.read() as reader:
        before = copying.state(reader)
        with _target(to) as target, target.write() as writer:
            moved = _copy(reader, writer, progress)
            with source.read() as later:
                if copying.state(later) != before:
                    raise CannotDo(
                        "the source changed while it was copied, so nothing was moved; stop the server that "
                        "works on it and move again"
                    )
    return moved


def _copy(reader: Connection, writer: Connection, progress: Progress) -> Moved:
    rows = {}
    for table in copying.copied():
        read = Sum()
        try:
            for some in copying.each(reader, table):
                for row in some:
                    read.add(table, row)
                copying.add(writer, table, some)
            copying.set_last_number(writer, table, copying.last_number(reader, table))
            written = copying.summed(writer, table)
        except SQLAlchemyError as error:
            raise CannotDo(f"table {table.name} could not be copied: {reason(error)}") from error
        if written != read:
            raise CannotDo(
                f"table {table.name} came out differently ({read.rows} rows read, {written.rows} written); "
                "nothing was moved"
            )
        rows[table.name] = read.rows
        progress(f"{table.name}: {read.rows} rows, the same in both")
    return Moved(rows)


@contextmanager
def _target(to: str) -> Iterator[Database]:
    file = sqlite_file(to)
    if file is None:
        database = connect(to)
        try:
            _make_empty(database, to)
            yield database
        finally:
            database.close()
        return
    if file.exists():
        raise CannotDo(f"{file} exists already; name a file that does not")
    if not file.parent.is_dir():
        raise CannotDo(f"there is no folder {file.parent}")
    with put_in_place(file) as part:
        database = Database(f"sqlite:///{part.absolute()}", synchronous="NORMAL")
        try:
            migrate.upgrade(database)
            database.set_journal("off")  # the file is thrown away if anything fails
            yield database
            database.set_journal("wal")
        finally:
            database.close()


def _make_empty(database: Database, to: str) -> None:
    try:
        migrate.upgrade(database)
        with database.read() as c:
            filled = copying.filled(c)
    except SQLAlchemyError as error:
        raise CannotDo(f"{shown(to)} cannot be prepared: {reason(error)}") from error
    if filled:
        raise CannotDo(
            f"the target is not empty ({', '.join(filled)} hold rows); name an empty database, so that "
            "nothing is mixed or lost"
        )
