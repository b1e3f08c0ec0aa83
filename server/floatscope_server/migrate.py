"""Brings the database to the schema this version expects."""

from __future__ import annotations

from pathlib import Path

import alembic.command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from floatscope_server.database import Database

_LOCK_KEY = 8_321_001  # PostgreSQL advisory lock: two servers that start together migrate one after the other


class SchemaError(RuntimeError):
    """The database has a schema this version does not know."""


def migrations_dir() -> Path:
    """The folder with ``env.py``: inside the installed package, or two folders up in a checkout.

    Found from this file and not from ``site-packages``, where an editable install leaves a copy that grows
    stale.
    """
    here = Path(__file__).resolve().parent
    for folder in (here / "migrations", here.parent.parent / "migrations"):
        if (folder / "env.py").is_file():
            return folder
    raise SchemaError(
        f"the migrations are missing: no env.py in {here / 'migrations'}; install floatscope again"
    )


def upgrade(database: Database, *, revision: str = "head") -> None:
    """Applies the migrations that are missing. Raises SchemaError if the database is from a later version."""
    config = _config()
    with database.write() as connection:
        if database.dialect == "postgresql":
            connection.exec_driver_sql(f"select pg_advisory_xact_lock({_LOCK_KEY})")
        current = MigrationContext.configure(connection).get_current_revision()
        known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
        if current is not None and current not in known:
            raise SchemaError(
                f"the database has schema {current}, which this version of floatscope does not know; "
                "start the version that made it, or a later one"
            )
        config.attributes["connection"] = connection
        alembic.command.upgrade(config, revision)


def downgrade(database: Database, *, revision: str) -> None:
    """Takes migrations back down to ``revision`` (``base`` for an empty database).

    Raises SchemaError if the older schema could not hold what is stored; nothing is changed then.
    """
    check_known(revision)
    config = _config()
    with database.write() as connection:
        config.attributes["connection"] = connection
        try:
            alembic.command.downgrade(config, revision)
        except RuntimeError as error:  # a migration's own words
            raise SchemaError(str(error)) from error


def check_known(revision: str) -> None:
    """Raises SchemaError unless there is such a schema to go down to."""
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    if revision != "base" and revision not in known:
        raise SchemaError(f"there is no schema {revision!r}; known are base, {', '.join(sorted(known))}")


def revision_of(database: Database) -> str | None:
    """The schema the database has, None for one without any."""
    with database.read() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def newest() -> str:
    """The schema this version works with."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None
    return head


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(migrations_dir()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
