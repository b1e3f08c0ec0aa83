"""Runs as rows and as sides of a comparison, for its tests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.json_rows import batch_from_rows
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.compare.side import Side, side_of
from floatscope_diagnostics.readers.run_log import RunLog, Tally

Rows = list[dict[str, Any]]


def rows_of(loss: Iterable[float], *, first: int = 0, every: int = 1, **more: Sequence[float]) -> Rows:
    """A row a step with the loss and other scalars."""
    out: Rows = []
    for k, value in enumerate(loss):
        out.append({"step": first + every * k, "loss": value, **{n: v[k] for n, v in more.items()}})
    return out


def side(rows: Rows, *, label: str = "run", info: Mapping[str, Any] | None = None) -> Side:
    """The rows as a side; rows may be unordered and repeat steps, as in a file."""
    batches = [(int(row.get("rank", 0)), batch_from_rows([row], strict=False)) for row in rows]
    return side_of(label, RunLog(RunInfo.from_json(dict(info or {})), "floatscope", iter(batches), Tally()))


def write(path: Path, rows: Rows, *, info: Mapping[str, Any] | None = None) -> str:
    """A floatscope log."""
    lines = [json.dumps({"run": dict(info or {"name": path.stem})}), *(json.dumps(r) for r in rows)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def autoregressive(n: int, phi: float, seed: int) -> NDArray[np.float64]:
    """An AR(1) series of variance 1."""
    draw = np.random.default_rng(seed)
    shocks = draw.normal(size=n) * np.sqrt(1.0 - phi * phi)
    out = np.empty(n)
    level = draw.normal()
    for k in range(n):
        level = phi * level + shocks[k]
        out[k] = level
    return out


def curve(n: int, seed: int = 1) -> NDArray[np.float64]:
    """A training loss: a falling curve with the noise of the batches."""
    steps = np.arange(n)
    return 2.0 + 3.0 * np.exp(-steps / 100.0) + np.random.default_rng(seed).normal(0.0, 0.2, n)


def pair_of(
    gap: NDArray[np.float64],
    *,
    noise: float = 0.01,
    seed: int = 3,
    baseline: NDArray[np.float64] | None = None,
) -> tuple[Rows, Rows]:
    """Run and baseline on the same batches whose losses differ by ``gap`` and white noise."""
    base = curve(len(gap)) if baseline is None else baseline
    run = base + gap + np.random.default_rng(seed).normal(0.0, noise, len(gap))
    return rows_of(run.tolist()), rows_of(base.tolist())
