"""Runs the migrations over the connection the server hands in (``floatscope_server.migrate``)."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

from floatscope_server.tables import metadata

connection = context.config.attributes.get("connection")
if not isinstance(connection, Connection):
    raise SystemExit(
        "run the migrations by `floatscope serve` or floatscope_server.migrate.upgrade(database)"
    )
context.configure(
    connection=connection, target_metadata=metadata, render_as_batch=connection.dialect.name == "sqlite"
)
context.run_migrations()
