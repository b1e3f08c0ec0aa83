"""Opens the database that the settings name, and never makes one by mistake."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from floatscope_server import migrate
from floatscope_server.data_lock import AlreadyServed, DataLock
from floatscope_server.database import Database, file_of
from floatscope_server.settings import Settings


class CannotDo(Exception):
    """Something is in the way of a command; the message says what and what to do."""


@contextmanager
def opened(settings: Settings, *, current: bool = True) -> Iterator[Database]:
    """The database of the settings. current: its schema must be the one of this version. Raises CannotDo."""
    database = connect(settings.database, synchronous=settings.sqlite_synchronous)
    try:
        found, newest = migrate.revision_of(database), migrate.newest()
        if found is None:
            raise CannotDo(f"{shown(settings.database)} holds no floatscope database")
        if current and found != newest:
            raise CannotDo(
                f"the database has schema {found}, this version of floatscope works with {newest}; "
                "bring it there with: floatscope db upgrade"
            )
        yield database
    finally:
        database.close()


@contextmanager
def alone(settings: Settings) -> Iterator[None]:
    """No server works on the SQLite file meanwhile. Raises CannotDo if one does.

    Of PostgreSQL this cannot be known; there it is only asked for in the help.
    """
    file = sqlite_file(settings.database)
    if file is None or not file.parent.is_dir():
        yield
        return
    lock = DataLock(file.parent)
    try:
        lock.take()
    except AlreadyServed as error:
        raise CannotDo(f"a server ({error}) works on {file.parent}; stop it first") from error
    try:
        yield
    finally:
        lock.release()


def connect(url: str, *, synchronous: str = "FULL") -> Database:
    """A database that is there and answers. Raises CannotDo."""
    file = sqlite_file(url)
    if file is not None and not file.is_file():
        raise CannotDo(
            f"there is no database {file}; name its folder with --data-dir or FLOATSCOPE_DATA_DIR, or its "
            "address with FLOATSCOPE_DATABASE_URL"
        )
    try:
        database = Database(url, synchronous=synchronous)
        database.ping()
    except ModuleNotFoundError as error:
        raise CannotDo(
            f"the package {error.name!r} is not installed here: pip install 'floatscope[postgres]'"
        ) from error
    except (SQLAlchemyError, ValueError) as error:
        raise CannotDo(f"{shown(url)} cannot be opened: {reason(error)}") from error
    return database


def sqlite_file(url: str) -> Path | None:
    """The file of an SQLite address, or None for another database. Raises CannotDo."""
    try:
        return file_of(url)
    except ValueError as error:
        raise CannotDo(str(error)) from error


def shown(url: str) -> str:
    """The address without its password."""
    return make_url(url).render_as_string(hide_password=True)


def reason(error: Exception) -> str:
    """First line of what the database said."""
    return (str(getattr(error, "orig", None) or error).strip().splitlines() or [type(error).__name__])[0]
