"""A case: a run, and what must be found in it. Every case is judged by all rules at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from floatscope.protocol.json_rows import batch_from_rows
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.calibration import AS_STATED, Calibration
from floatscope_diagnostics.engine import Engine


@dataclass(frozen=True)
class Want:
    """A warning or critical finding. onset: the steps it may lie in.  tensor: the first named."""

    cause: str
    onset: tuple[int, int]
    kind: str | None = None
    tensor: str | None = None


@dataclass(frozen=True)
class Case:
    """name: the fact it states.  want: all warning and critical findings, in order of onset, or silence."""

    name: str
    info: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    want: tuple[Want, ...] = ()


def diagnose(case: Case, *, chunk: int = 16, calibration: Calibration = AS_STATED) -> dict[str, Any]:
    """The verdict of a case's run, rank by rank in chunks, with the confidences that the rules state."""
    engine = Engine(RunInfo.from_json(dict(case.info)), calibration=calibration)
    by_rank: dict[int, list[Mapping[str, Any]]] = {}
    for row in case.rows:
        by_rank.setdefault(int(row.get("rank", 0)), []).append(row)
    longest = max((len(rows) for rows in by_rank.values()), default=0)
    for start in range(0, longest, chunk):
        for rank in sorted(by_rank):
            part = by_rank[rank][start : start + chunk]
            if part:
                engine.feed(batch_from_rows(part, strict=False), rank=rank)
    return engine.verdict().to_json()


def alarms(verdict: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [f for f in verdict["findings"] if f["severity"] != "info"]
