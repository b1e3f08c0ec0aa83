"""The database: SQLite (WAL) or PostgreSQL by the same SQLAlchemy Core code, with explicit read and write
transactions.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, NullPool, Table, create_engine, event, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.exc import ArgumentError, InterfaceError, OperationalError, PendingRollbackError
from sqlalchemy.exc import TimeoutError as PoolTimeout

BUSY_TIMEOUT_MS = 30_000  # another process, such as a backup, may hold SQLite's write lock for seconds
POOL_SIZE = 10
CONNECTIONS = 50  # threads of the request pool (40) and of background work each hold at most one
DEDICATED_SETTINGS = (
    # Both ends find out within about 11 s that the other machine is gone.
    *("tcp_keepalives_idle=5", "tcp_keepalives_interval=2", "tcp_keepalives_count=3"),
    *("tcp_user_timeout=10000", "statement_timeout=5000"),
)
WAL_PAGES = 2_000  # checkpoint after about 8 MB of log
CACHE_KIB = 16_384  # of each connection, and there may be tens; the system caches the file anyway
AWAY = (OperationalError, InterfaceError, PendingRollbackError, PoolTimeout)
"""What is raised when the database is full, locked or away, or a connection to it broke in mid-use."""
_WRITE = "floatscope_write"


def file_of(url: str) -> Path | None:
    """The file of an SQLite address, None for another database. Raises ValueError if none can be meant."""
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise ValueError(
            "the address of the database cannot be read; expected postgresql://user@host/database or "
            "sqlite:///path/to/floatscope.db"
        ) from error
    if parsed.get_backend_name() != "sqlite":
        return None
    if not parsed.database or parsed.database == ":memory:":
        raise ValueError("expected a file in the address of the database: sqlite:///path/to/floatscope.db")
    return Path(parsed.database)


class Database:
    """Connections to one database.

    ``read()`` sees one consistent state; ``write()`` commits all or nothing. ``connections``: the most
    it opens at once in its pool. ``name``: what its connections are called in the database, random, so that
    a worker can be told from others.
    """

    def __init__(self, url: str, *, synchronous: str = "FULL", connections: int = CONNECTIONS) -> None:
        parsed = make_url(url)
        self.name = f"floatscope-{secrets.token_hex(8)}"
        self.dialect = parsed.get_backend_name()
        if self.dialect not in ("sqlite", "postgresql"):
            raise ValueError(f"database {self.dialect!r} is not supported; expected sqlite or postgresql")
        self.engine: Engine = create_engine(
            parsed,
            pool_size=min(POOL_SIZE, connections),
            max_overflow=max(connections - POOL_SIZE, 0),
            pool_pre_ping=self.dialect == "postgresql",
            hide_parameters=True,  # they may be the address of a webhook, and errors are logged
            connect_args={"application_name": self.name} if self.dialect == "postgresql" else {},
        )
        self._readers = self.engine
        if self.dialect == "postgresql":  # SQLite's transactions are snapshots anyway
            self._readers = self.engine.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )
        self._writers = threading.Lock()
        if self.dialect == "sqlite":
            _prepare_sqlite(self.engine, synchronous=synchronous)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that only reads and sees one snapshot, however many queries it makes."""
        with self._readers.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A write transaction. On SQLite writers queue here, since its own waiting polls and is unfair."""
        if self.dialect != "sqlite":
            with self.engine.begin() as connection:
                yield connection
            return
        with self._writers, self.engine.connect() as connection:
            marked = connection.execution_options(**{_WRITE: True})
            with marked.begin():
                yield marked

    def dedicated(self) -> Connection:
        """PostgreSQL: a connection of its own beside the pool, on which every statement commits by itself.

        For what belongs to a session: locks, LISTEN. It breaks soon after the other end is gone.
        """
        engine = create_engine(
            self.engine.url,
            poolclass=NullPool,
            isolation_level="AUTOCOMMIT",
            hide_parameters=True,
            connect_args={
                "application_name": self.name,
                "connect_timeout": 5,
                **{"keepalives": 1, "keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3},
                "tcp_user_timeout": 10_000,
            },
        )
        connection = engine.connect()
        for setting in DEDICATED_SETTINGS:
            connection.exec_driver_sql(f"set {setting}")
        return connection

    def socket_of(self, connection: Connection) -> int:
        """The descriptor of a PostgreSQL connection's socket."""
        return int(connection.connection.driver_connection.fileno())  # type: ignore[union-attr]

    def heard(self, connection: Connection, *, timeout_s: float) -> list[str]:
        """Payloads that arrived on a dedicated connection that listens; waits for the first. Raises
        OperationalError if the connection broke.
        """
        raw: Any = connection.connection.driver_connection
        try:
            return [notice.payload for notice in raw.notifies(timeout=timeout_s, stop_after=1)]
        except self.engine.dialect.loaded_dbapi.Error as error:
            raise OperationalError("listen", None, error) from error

    def ping(self) -> None:
        """Raises if the database does not answer."""
        with self.read() as connection:
            connection.execute(text("select 1"))

    def give_back(self, *, pages: int) -> int:
        """SQLite: takes at most so many free pages off the file; the number of free pages it still has.

        A file from before floatscope gave pages back keeps them, to use them again.
        """
        if self.dialect != "sqlite":
            return 0
        with self.write() as connection:
            cursor = connection.connection.cursor()
            for _ in range(pages):  # one page each: the driver stops after the first
                cursor.execute("pragma incremental_vacuum(1)")
            cursor.close()
            return int(connection.execute(text("pragma freelist_count")).scalar_one())

    def set_journal(self, mode: str) -> None:
        """SQLite: how changes are undone, for a file nobody else uses (``wal``, ``off``)."""
        raw = self.engine.raw_connection()
        try:
            cursor = raw.cursor()
            cursor.execute(f"pragma journal_mode={mode}").fetchall()
            cursor.close()
        finally:
            raw.close()

    def rewrite(self) -> None:
        """Gives free room back by rewriting: SQLite as a whole, PostgreSQL what its own cleaning left."""
        if self.dialect == "sqlite":
            raw = self.engine.raw_connection()
            try:
                raw.cursor().execute("pragma auto_vacuum=incremental").close()
                raw.cursor().execute("vacuum").close()
            finally:
                raw.close()
            self.empty_log()
            return
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("vacuum (analyze)")

    def empty_log(self) -> None:
        """SQLite: brings its log into the file and empties it, unless a reader still needs it."""
        if self.dialect != "sqlite":
            return
        raw = self.engine.raw_connection()
        try:
            cursor = raw.cursor()
            cursor.execute("pragma busy_timeout=50")  # writers wait as long as this does
            cursor.execute("pragma wal_checkpoint(truncate)").fetchall()
            cursor.execute(f"pragma busy_timeout={BUSY_TIMEOUT_MS}")
            cursor.close()
        finally:
            raw.close()

    def close(self) -> None:
        self.engine.dispose()


def upsert(connection: Connection, table: Table) -> Any:
    """An INSERT that knows ``on_conflict_do_nothing`` and ``on_conflict_do_update`` on either database.

    Whether a row was inserted is told by ``.returning(key)`` and ``first() is None``: psycopg's rowcount is
    -1 in both cases.
    """
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)


def _prepare_sqlite(engine: Engine, *, synchronous: str) -> None:
    """The driver's own transaction handling starts writes late and never for SELECT; so BEGIN is sent from
    here.
    """

    @event.listens_for(engine, "connect")
    def on_connect(raw: Any, _record: object) -> None:
        raw.isolation_level = None
        cursor = raw.cursor()
        cursor.execute(f"pragma busy_timeout={BUSY_TIMEOUT_MS}")
        if cursor.execute("pragma page_count").fetchone() == (0,):
            # Room of deleted runs is given back. Only a new file takes it, and it takes the write lock.
            cursor.execute("pragma auto_vacuum=incremental")
        for pragma in (
            "journal_mode=wal",
            f"synchronous={synchronous}",
            "foreign_keys=on",
            "secure_delete=fast",  # what is deleted is overwritten where that costs no further writing
            f"wal_autocheckpoint={WAL_PAGES}",
            f"cache_size=-{CACHE_KIB}",
        ):
            cursor.execute(f"pragma {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        write = connection.get_execution_options().get(_WRITE, False)
        connection.exec_driver_sql("begin immediate" if write else "begin")
