"""A database of very many runs: copies of a few real ones, made beside a server that has nothing to do."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

LEFT_OUT = ("alert", "engine_state", "frame", "outbox", "tensor_table")
"""Tables with a column ``run`` that copies do without. Batches refer to the originals' tensor tables."""
STATUSES = ("running", "running", "running", "running", "finished", "finished", "stalled", "crashed")
PROJECTS = ("pretrain-7b", "moe", "vision", "<b>sft</b>")


def copies(database: Path, count: int, *, first: int = 0) -> list[str]:
    """Adds so many copies of the runs that are there, in turn; returns their ids. Names, projects, statuses
    and times differ; every 20th is critical and every 10th has a warning, all others are healthy.
    """
    with closing(sqlite3.connect(database)) as c, c:
        c.row_factory = sqlite3.Row
        originals = c.execute("select * from run where deleted is null order by id").fetchall()
        tables = _tables(c)
        made = []
        for number in range(first, first + count):
            original = originals[number % len(originals)]
            run = f"copy-{number:05d}"
            values = dict(original) | _changes(number, run)
            del values["id"]
            new = _insert(c, "run", values)
            for table, columns in tables.items():
                others = ", ".join(column for column in columns if column != "run")
                c.execute(
                    f"insert into {table} (run, {others}) select ?, {others} from {table} where run = ?",
                    (new, original["id"]),
                )
            made.append(run)
    return made


def _changes(number: int, run: str) -> dict[str, object]:
    status = STATUSES[number % len(STATUSES)]
    health = "critical" if number % 20 == 0 else "warning" if number % 10 == 0 else "healthy"
    now = time.time()
    return {
        "run_id": run,
        "name": f"llama-{number % 7}b-e4m3-r{number:05d}",
        "project": PROJECTS[number % len(PROJECTS)],
        "status": status,
        "health": health,
        "summary": "The scale of blocks.0.attn.qkv/input is too old."
        if health != "healthy"
        else "No fault found.",
        "cause": "stale_scale_saturation" if health != "healthy" else None,
        "onset_step": 20 if health != "healthy" else None,
        "last_loss_json": json.dumps(2 + number / 1000).ljust(25),
        "created": now - 86_400,
        "last_seen": now - number % 50,
    }


def _tables(c: sqlite3.Connection) -> dict[str, Sequence[str]]:
    """Table -> its columns, of those that hold rows of runs."""
    names = [row[0] for row in c.execute("select name from sqlite_master where type = 'table'")]
    columns = {name: [row[1] for row in c.execute(f"pragma table_info({name})")] for name in names}
    return {
        name: some
        for name, some in columns.items()
        if "run" in some and "id" not in some and name not in LEFT_OUT
    }


def _insert(c: sqlite3.Connection, table: str, values: dict[str, object]) -> int:
    places = ", ".join("?" for _ in values)
    cursor = c.execute(f"insert into {table} ({', '.join(values)}) values ({places})", list(values.values()))
    if cursor.lastrowid is None:
        raise AssertionError(f"no row of {table} was added")
    return cursor.lastrowid
