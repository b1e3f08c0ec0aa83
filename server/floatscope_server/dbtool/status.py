"""What ``floatscope db status`` tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from floatscope_server import migrate
from floatscope_server.database import Database
from floatscope_server.dbtool.opening import shown, sqlite_file
from floatscope_server.store import inventory

MIB = 1 << 20


def status(database: Database, url: str) -> dict[str, Any]:
    """Schema, sizes and counts as a JSON object; of another schema only what can be told."""
    found, newest = migrate.revision_of(database), migrate.newest()
    out: dict[str, Any] = {"database": shown(url), "schema": {"is": found, "expected": newest}}
    with database.read() as c:
        room = inventory.room(c)
        out["bytes"] = {"on_disk": room.total_bytes}
        if room.free_bytes is not None:
            out["bytes"] |= {"free_in_file": room.free_bytes, "log": _log_bytes(url)}
        if found == newest:
            out["bytes"] |= inventory.bytes_stored(c)
            out["runs"] = inventory.runs_by_status(c)
            out["being_removed"] = inventory.being_removed(c)
            out["steps"] = inventory.steps(c)
            out["left_overs"] = inventory.left_overs(c)
            out["rows"] = inventory.rows(c)
    return out


def lines(told: dict[str, Any]) -> list[str]:
    """The same for people."""
    schema = told["schema"]
    out = [f"database   {told['database']}"]
    right = "the current one" if schema["is"] == schema["expected"] else f"expected {schema['expected']}"
    out.append(f"schema     {schema['is']} ({right})")
    out += ["", *(f"{_words(name):<20} {size / MIB:>12.1f} MiB" for name, size in told["bytes"].items())]
    if "rows" not in told:
        return [*out, "", "more is told after: floatscope db upgrade"]
    runs = ", ".join(f"{count} {name}" for name, count in told["runs"].items()) or "none"
    out += ["", f"runs       {runs}; {told['being_removed']} being removed"]
    out.append(f"steps      {told['steps']['hot']} hot, {told['steps']['in_chunks']} in chunks")
    left = ", ".join(f"{count} {name}" for name, count in told["left_overs"].items())
    out += [f"left over  {left} (removed by the server as it goes)", ""]
    return out + [f"{name:<20} {count:>12} rows" for name, count in told["rows"].items()]


def on_disk(database: Database) -> int:
    """Bytes the database takes up."""
    with database.read() as c:
        return inventory.room(c).total_bytes


def _words(name: str) -> str:
    return name.replace("_", " ")


def _log_bytes(url: str) -> int:
    file = sqlite_file(url)
    log = None if file is None else Path(f"{file}-wal")
    return log.stat().st_size if log is not None and log.is_file() else 0
