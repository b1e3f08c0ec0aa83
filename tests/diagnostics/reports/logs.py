"""Small logs for the tests of reports."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HOSTILE = "<script>alert(1)</script>\"'&`|\x1b[31m"


def write(path: Path, rows: Sequence[dict[str, Any]], run: dict[str, Any] | None = None) -> str:
    head = [] if run is None else [{"run": run}]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*head, *rows]))
    return str(path)


def healthy(steps: int = 60) -> list[dict[str, Any]]:
    return [{"step": s, "loss": 3.0 - 0.01 * s + 0.001 * (s % 7), "lr": 1e-3} for s in range(1, steps + 1)]


def broken(steps: int = 60, *, at: int = 41) -> list[dict[str, Any]]:
    rows = healthy(steps)
    return [{**row, "loss": "NaN"} if row["step"] >= at else row for row in rows]
