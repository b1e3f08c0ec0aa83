"""Times: Unix seconds inside, ISO 8601 UTC outside."""

from __future__ import annotations

from datetime import datetime, timezone


def iso(unix: float) -> str:
    """For example ``2026-11-29T21:39:00.250000Z``."""
    return moment(unix).isoformat().replace("+00:00", "Z")


def moment(unix: float) -> datetime:
    return datetime.fromtimestamp(unix, timezone.utc)
