"""Tokens, sessions of browsers, the server's secrets, and who did what."""

from __future__ import annotations

from sqlalchemy import Column, Double, ForeignKey, Index, Integer, LargeBinary, String, Table, Text

from floatscope_server.tables.registry import metadata

token = Table(
    "token",
    metadata,
    Column("hash", String(64), primary_key=True),  # SHA-256 in hex; tokens are random, so no salt is needed
    Column("name", Text, nullable=False),
    Column("created", Double, nullable=False),
    Column("id", String(32), nullable=False, unique=True),
    Column("scopes_json", Text, nullable=False, server_default='["admin"]'),
    Column("created_by", Text, nullable=False, server_default="server"),
    Column("expires", Double),
    Column("last_used", Double),
    Column("revoked", Double),
)

session = Table(
    "session",
    metadata,
    Column("hash", String(64), primary_key=True),  # SHA-256 in hex of the cookie
    Column("token", String(64), ForeignKey("token.hash")),  # None: the token of the environment
    Column("environment", String(64)),  # its hash, so that another token there ends the session
    Column("created", Double, nullable=False),
    Column("expires", Double, nullable=False),
    Column("seen", Double, nullable=False),
)

secret = Table(
    "secret",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", LargeBinary, nullable=False),
)

audit = Table(
    "audit",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("time", Double, nullable=False),
    Column("who", Text, nullable=False),
    Column("token", String(32)),  # its id; None: the token of the environment, or the server itself
    Column("action", Text, nullable=False),
    Column("target", Text),
    Column("detail_json", Text, nullable=False),
    Column("address", Text),
    Index("audit_by_time", "time"),
    sqlite_autoincrement=True,
)
