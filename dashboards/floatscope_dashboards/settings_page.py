"""Settings: tokens and this session, how this browser shows things, what the server keeps, about it."""

from __future__ import annotations

from dataclasses import dataclass

from floatscope_dashboards import assets
from floatscope_dashboards.page import Page
from floatscope_dashboards.say import DAY_S, NARROW_SPACE, Say, later
from floatscope_dashboards.settings_view import Keeping, Room, SettingsView, TokenRow

LICENCE = "Apache-2.0"
SCOPES = ("ingest", "read", "write", "admin")
MEANINGS = {
    "ingest": later("sends steps: what a trainer needs"),
    "read": later("opens pages and reads the API"),
    "write": later("acknowledges alerts, makes silences, changes rules"),
    "admin": later("everything, also channels and tokens"),
}
DATABASES = {
    "sqlite": later("SQLite, one file in the data folder"),
    "postgresql": later("PostgreSQL"),
}
STATES = {"expired": later("Expired"), "revoked": later("Ended")}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_SHADES = ("a", "b", "c", "d", "e", "f")


@dataclass(frozen=True)
class Slice:
    """A part of the bar of the disk. ``width``: percent; ``kind``: which colour."""

    kind: str
    word: str
    size: str
    width: int


def settings_page(view: SettingsView, say: Say) -> Page:
    """The settings page."""
    tokens = view.tokens or ()
    return Page(
        "settings.html",
        say("Settings") + " \u2013 floatscope",
        section="settings",
        script="settings.js",
        styles=("settings.css",),
        values={
            "view": view,
            "live_tokens": [token for token in tokens if token.state == "active"],
            "ended_tokens": [token for token in tokens if token.state != "active"],
            "scopes": [(scope, say(MEANINGS[scope])) for scope in SCOPES],
            "states": STATES,
            "by_environment": view.by_environment,
            "keeping": _keeping(view.keeping, say),
            "slices": () if view.room is None else _slices(view.room, say),
            "room": None if view.room is None else _room(view.room, say),
            "licence": LICENCE,
            "plotly_version": assets.plotly_script(assets.wheel_script()).version,
            "unused": {token.id for token in tokens if _is_unused(token, view)},
        },
        data={"scopes": {scope: say(MEANINGS[scope]) for scope in SCOPES}},
    )


def size_text(count: int) -> str:
    """A size in the unit that suits it, with three digits: "1.24 GiB"."""
    size, unit = float(count), 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    digits = 0 if unit == 0 or size >= 100 else 1 if size >= 10 else 2
    return f"{size:,.{digits}f}{NARROW_SPACE}{_UNITS[unit]}"


def _keeping(keeping: Keeping, say: Say) -> list[tuple[str, str]]:
    every = _limits(keeping.days, keeping.gib, say)
    found = [(say("Runs that have ended"), every or say("kept for ever"))]
    for project, days, gib, always in keeping.projects:
        said = say("kept for ever") if always else _limits(days, gib, say) or every or say("kept for ever")
        found.append((say("In project {project}", project=project), said))
    found.append((say("Who did what"), say.plural("{n} day", "{n} days", keeping.audit_days)))
    return found


def _limits(days: float | None, gib: float | None, say: Say) -> str:
    parts = []
    if days is not None:
        parts.append(say("deleted {duration} after their last data", duration=say.duration(days * DAY_S)))
    if gib is not None:
        parts.append(say("the oldest are deleted beyond {size}", size=f"{gib:,g}{NARROW_SPACE}GiB"))
    return "; ".join(parts)


def _slices(room: Room, say: Say) -> list[Slice]:
    """What fills the database: the largest projects, the rest, and what is free inside it."""
    listed = [(say("Project {name}", name=name), size) for name, _, size in room.projects]
    reusable = room.reusable_bytes or 0
    others = room.run_bytes - sum(size for _, size in listed)
    overhead = max(0, room.database_bytes - room.run_bytes - reusable) if room.objects is None else 0
    parts = [(kind, word, size) for kind, (word, size) in zip(_SHADES, listed, strict=False)]
    parts.append(("g", say("Other projects"), others))
    parts.append(("g", say("Indexes, verdicts, alerts"), overhead))
    parts.append(("free", say("Free inside the file"), reusable))
    total = sum(size for _, _, size in parts) or 1
    return [
        Slice(kind, word, size_text(size), max(1, round(100 * size / total)))
        for kind, word, size in parts
        if size > 0
    ]


def _room(room: Room, say: Say) -> dict[str, str | None]:
    free = room.free_bytes
    return {
        "database": say(DATABASES.get(room.database, room.database)),
        "objects": room.objects,
        "used": size_text(room.database_bytes),
        "free": None if free is None else size_text(free),
        "reserve": size_text(room.reserve_bytes),
        "full": None if free is None or free >= room.reserve_bytes else "full",
    }


def _is_unused(token: TokenRow, view: SettingsView) -> bool:
    """Made over a month ago and never used: a token that could be ended."""
    return token.last_used is None and (view.now - token.created).days >= 30
