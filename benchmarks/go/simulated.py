"""Pairs whose truth is known, simulated."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.compare.eval_files import Task
from floatscope_diagnostics.compare.evals import compare_evals
from floatscope_diagnostics.compare.gate import EvalRow
from floatscope_diagnostics.compare.settled import Settled
from floatscope_diagnostics.compare.side import Side
from floatscope_diagnostics.compare.tensor_log import TensorLog
from floatscope_diagnostics.compare.throughput import Throughput, throughput
from floatscope_diagnostics.compare.traces import Trace

Float64 = NDArray[np.float64]
SPEEDUP = 1.25


def autoregressive(n: int, phi: float, draw: np.random.Generator) -> Float64:
    """AR(1) of variance 1 and mean 0."""
    shocks = (draw.normal(size=n) * np.sqrt(1.0 - phi * phi)).tolist()
    level = float(draw.normal())
    out = []
    for shock in shocks:
        level = phi * level + shock
        out.append(level)
    return np.array(out)


def settled_gap(values: Float64) -> Settled:
    """A judged part that is all of the series."""
    n = len(values)
    return Settled(np.arange(n), values, 0, n - 1, None, False, 1)


def speed_band(n: int, phi: float, draw: np.random.Generator) -> tuple[float, float, float]:
    """The interval of a ratio of step times, and the truth."""
    sides = [_timed(seconds, n, phi, draw) for seconds in (1.0 / SPEEDUP, 1.0)]
    found = throughput(sides[0], sides[1])
    if not isinstance(found, Throughput):
        raise RuntimeError(found.why)
    return found.low, found.high, SPEEDUP


def _timed(seconds: float, n: int, phi: float, draw: np.random.Generator) -> Side:
    times = seconds * np.exp(0.05 * autoregressive(n + 20, phi, draw))
    times[:20] *= 20.0
    times[draw.random(n + 20) < 0.03] *= 8.0
    step = np.arange(n + 20)
    none = np.full(n + 20, np.nan)
    return Side(
        "", "simulated", RunInfo(), step, np.full(n + 20, 2.0), none, none, none, TensorLog(),
        traces={"step_time_s": Trace(step, times)},
    )  # fmt: skip


def evals_row(n: int, lost_points: float, draw: np.random.Generator) -> EvalRow:
    """One task: 60 % right, 5 % of the answers turned either way, and so many points lost."""
    base = draw.random(n) < 0.6
    turned = 0.05
    down = turned / 2.0 + lost_points / 200.0
    up = turned / 2.0 - lost_points / 200.0
    wrong_again = base & (draw.random(n) < down / 0.6)
    right_now = ~base & (draw.random(n) < up / 0.4)
    run = (base & ~wrong_again) | right_now
    tasks = [{"t": Task("acc", float(x.mean()), n, {str(k): float(v) for k, v in enumerate(x)})}
             for x in (run, base)]  # fmt: skip
    return compare_evals(tasks[0], tasks[1], 1.0).rows[0]
