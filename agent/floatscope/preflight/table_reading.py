"""Reads preflight's tables: rows of what is known of GPUs, versions and readings, each with its source."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, cast

from floatscope.preflight.check import Status
from floatscope.preflight.facts import GpuFacts
from floatscope.preflight.table_conditions import Condition, Situation, all_hold, unread

_RANK: dict[Status, int] = {"not_applicable": 0, "pass": 1, "warn": 2, "unknown": 3, "fail": 4}


@dataclass(frozen=True)
class Row:
    """One row: when it applies, what follows from it.  verified: False for what was never confirmed."""

    id: str
    when: tuple[Condition, ...]
    status: Status
    why: str
    do: str
    source: str
    verified: bool = True


@dataclass(frozen=True)
class Answer:
    """What a row says of a situation. ``unknown`` where it depends on something that was not read."""

    row: str
    status: Status
    why: str
    do: str
    source: str


@cache
def read_table(name: str) -> Any:
    """The table of that file name, without its ending; parsed JSON."""
    return json.loads(
        files("floatscope.preflight").joinpath("tables", f"{name}.json").read_text(encoding="utf-8")
    )


def row_of(entry: dict[str, Any], more: Sequence[Condition] = ()) -> Row:
    """A row as the files have it. more: conditions that all rows of its group share."""
    verified = entry.get("verified", True)
    why = entry["why"] if verified else f"{entry['why']} (not confirmed)"
    return Row(
        id=entry["id"],
        when=(*more, *entry["when"]),
        status=cast(Status, entry["status"]),
        why=why,
        do=entry.get("do", ""),
        source=entry["source"],
        verified=verified,
    )


def answers(rows: Sequence[Row], situation: Situation) -> list[Answer]:
    """What the rows say that apply, or that would if more had been read."""
    found = []
    for row in rows:
        holds = all_hold(row.when, situation)
        if holds:
            found.append(Answer(row.id, row.status, row.why, row.do, row.source))
        elif holds is None and row.status not in ("pass", "not_applicable"):
            names = ", ".join(unread(row.when, situation))
            found.append(
                Answer(
                    row.id,
                    "unknown",
                    f"not read: {names}; it decides whether this holds: {row.why}",
                    f"find out {names}. Then, if it holds: {row.do}" if row.do else f"find out {names}",
                    row.source,
                )
            )
    return found


def worst(statuses: Sequence[Status]) -> Status:
    """fail, unknown, warn, pass, not_applicable, in that order; unknown of none: it is never a pass."""
    return max(statuses, key=_RANK.__getitem__) if statuses else "unknown"


def gpu_label(gpu: GpuFacts) -> str:
    """ "GPU 0 NVIDIA H100 80GB HBM3"."""
    return f"GPU {gpu.index} {gpu.name}".rstrip()
