"""Pairs of runs whose loss and speed differ by what is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.json_rows import batch_from_rows
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.compare.health import Health
from floatscope_diagnostics.compare.judge import Comparison, Settings, compare
from floatscope_diagnostics.compare.limits import with_presets
from floatscope_diagnostics.compare.side import Side, side_of
from floatscope_diagnostics.readers.run_log import RunLog, Tally
from tests.diagnostics.compare.logs import Rows, rows_of

Array = NDArray[np.float64]
WELL = (Health("healthy"), Health("healthy"))
USUAL = with_presets((), {})
SPEED = with_presets((), {"min_speedup": 1.1})


def falling(n: int, seed: int) -> Array:
    """A power law with the noise of the batches, as long runs show."""
    noise = np.random.default_rng(seed).normal(0.0, 0.1, n)
    falls: Array = 2.0 + 3.0 * (np.arange(n) + 20.0) ** -0.3 + noise
    return falls


def side(made: Rows, *, label: str = "run", info: dict[str, Any] | None = None) -> Side:
    """All rows in one batch."""
    batch = batch_from_rows(made, strict=False)
    return side_of(label, RunLog(RunInfo.from_json(info or {}), "floatscope", iter([(0, batch)]), Tally()))


def rows(loss: Array, *, seconds: float, seed: int = 0, **more: Any) -> Rows:
    n = len(loss)
    draw = np.random.default_rng(seed)
    scalars: dict[str, Any] = {
        "step_time_s": (seconds * draw.lognormal(0.0, 0.03, n)).tolist(),
        "tokens": (4096.0 * np.arange(1, n + 1)).tolist(),
        "lr": np.minimum(np.arange(n) / 40.0, 1.0).tolist(),
    }
    return rows_of(loss.tolist(), **{k: v for k, v in {**scalars, **more}.items() if v is not None})


def pair(
    gap: Array | float = 0.0, *, n: int = 800, noise: float = 0.01, speed: float = 1.3, seed: int = 5,
    info: dict[str, Any] | None = None, base_info: dict[str, Any] | None = None, **more: Any,
) -> Comparison:  # fmt: skip
    base = falling(n, seed)
    run = base + gap + np.random.default_rng(seed + 1).normal(0.0, noise, n)
    return compare(
        side(rows(run, seconds=1.0 / speed, seed=seed, **more), label="run", info=info),
        side(rows(base, seconds=1.0, seed=seed + 7), label="base", info=base_info),
        Settings(),
    )
