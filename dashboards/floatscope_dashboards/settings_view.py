"""What the settings page is made from. Times are in UTC, sizes in bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True)
class TokenRow:
    """A token on record. ``state``: active, expired or revoked."""

    id: str
    name: str
    scopes: tuple[str, ...]
    state: str
    created: datetime
    created_by: str
    expires: datetime | None
    last_used: datetime | None
    is_reader: bool = False
    """Whether this browser was signed in with it."""


@dataclass(frozen=True)
class Keeping:
    """How long runs are kept. None: no limit.  projects: (project, days, gib, always kept)."""

    days: float | None
    gib: float | None
    audit_days: int
    projects: tuple[tuple[str, float | None, float | None, bool], ...] = ()


@dataclass(frozen=True)
class Room:
    """Room on disk.  database_bytes: the whole database.  reusable_bytes: inside it, free for what comes;
    None where that is not known, as for PostgreSQL.  free_bytes: on its disk.  projects: the largest, as
    (name, runs, bytes).
    """

    database: str
    """``sqlite`` or ``postgresql``."""
    database_bytes: int
    reusable_bytes: int | None
    free_bytes: int | None
    reserve_bytes: int
    objects: str | None
    """Where the bulk of the numbers is, if not in the database."""
    run_bytes: int
    runs: int
    projects: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True)
class SettingsView:
    """The settings page of one reader.  tokens: None where the reader may not see them."""

    tokens: tuple[TokenRow, ...] | None
    has_environment_token: bool
    keeping: Keeping
    room: Room | None
    """None where the reader may not see it or it cannot be read."""
    session_days: int
    idle_days: int
    now: datetime
    by_environment: bool = False
    """Whether the reader came with the token of the server's settings."""
    workers: int = 1
    languages: tuple[tuple[str, str], ...] = field(default_factory=tuple)
    """(tag, its own name)."""
