"""However much a log holds, time, memory and answer stay bounded."""

from __future__ import annotations

import json
import math
import time

import numpy as np
import pytest

from floatscope.protocol.batch import Batch
from floatscope.protocol.json_rows import batch_from_rows
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.engine import Engine
from floatscope_diagnostics.episodes import MAX_EPISODES_PER_SIGNAL
from tests.diagnostics.strange import RECIPE, checked


def test_thousands_of_restarts_fill_neither_state_nor_time() -> None:
    info = RunInfo.from_json(RECIPE)
    engine = Engine(info)
    rng = np.random.default_rng(1)
    sizes = []
    begin = time.process_time()
    for turn in range(2000):
        rows = [
            {
                "step": s,
                "loss": math.nan if turn % 3 == 0 else float(rng.normal()),
                "tensors": {
                    "a/input": {
                        "amax": 1.0,
                        "scale": float(rng.integers(1, 99)),
                        "nan_count": float(turn % 3 == 0),
                    }
                },
            }
            for s in range(3)
        ]
        engine.feed(batch_from_rows(rows))
        if turn in (999, 1999):
            sizes.append(len(engine.state()))
    document = checked(engine)
    assert time.process_time() - begin < 60
    assert sizes[1] < 1.1 * sizes[0] + 2000
    assert len(document["findings"]) < 8 * MAX_EPISODES_PER_SIGNAL
    assert len(document["source"]["notes"]) <= 128
    assert Engine.restore(info, engine.state()).verdict().to_json() == document


def test_endless_new_scalar_names_do_not_fill_the_state() -> None:
    engine = Engine(RunInfo())
    for k in range(40):
        engine.feed(
            batch_from_rows([{"step": k, "loss": 2.0, **{f"extra_{k}_{j}": 1.0 for j in range(200)}}])
        )
    assert len(engine.state()) < 120_000
    assert checked(engine)["status"] == "healthy"


@pytest.mark.parametrize("ranks", [10_000, 1_000_000_000])
def test_ranks_that_are_claimed_and_never_come_cost_nothing(ranks: int) -> None:
    engine = Engine(RunInfo.from_json({**RECIPE, "ranks": ranks}))
    for rank in (0, 7, ranks - 1):
        engine.feed(
            batch_from_rows([{"step": s, "loss": 2.0, "param_norm": 40.0} for s in range(100)]), rank=rank
        )
    document = checked(engine)
    assert document["status"] == "healthy"
    assert len(engine.state()) < 300_000


def test_a_thousand_ranks_that_do_come_are_judged() -> None:
    engine = Engine(RunInfo.from_json({"ranks": 1000}))
    begin = time.process_time()
    for start in (0, 8):
        batch = batch_from_rows(
            [{"step": s, "loss": 2.0 + 0.01 * (s % 3), "param_norm": 40.0} for s in range(start, start + 8)]
        )
        for rank in range(1000):
            engine.feed(batch, rank=rank)
    checked(engine)
    assert time.process_time() - begin < 60


def wide(tensors: int, steps: int) -> Batch:
    """A run of many tensors that all leap at once, half way."""
    rng = np.random.default_rng(0)
    amax = np.exp(rng.normal(0, 0.1, (steps, tensors))).astype(np.float32)
    amax[steps // 2 :] *= 1e4
    stats = {
        "amax": amax,
        "scale": np.full((steps, tensors), 100, np.float32),
        "underflow_pct": np.where(np.arange(steps)[:, None] > steps // 2, 90, 1)
        * np.ones((1, tensors), np.float32),
        "nan_count": np.where(np.arange(steps)[:, None] > steps - 2, 1, 0)
        * np.ones((1, tensors), np.float32),
    }
    here = np.ones((steps, tensors), bool)
    return Batch(
        step=np.arange(steps),
        time=np.zeros(steps),
        scalar_names=("loss",),
        scalars=np.full((steps, 1), 2.5),
        scalars_present=np.ones((steps, 1), bool),
        tensor_names=tuple(
            f"layers.{k // 3}.mlp/{('input', 'weight', 'grad_output')[k % 3]}" for k in range(tensors)
        ),
        stat_row=np.arange(steps),
        stats={k: v.astype(np.float32) for k, v in stats.items()},
        stats_present=dict.fromkeys(stats, here),
    )


def test_a_hundred_thousand_tensors_are_judged_in_bounded_time_and_size() -> None:
    """Measured on one core: 100,000 tensors take 0.3 s a step, 40 MB of state and 1.3 GB of memory."""
    begin = time.process_time()
    engine = Engine(RunInfo.from_json(RECIPE))
    engine.feed(wide(100_000, 6))
    document = checked(engine)
    assert time.process_time() - begin < 60
    assert document["source"]["tensors"] == 100_000
    assert len(json.dumps(document)) < 100_000
    assert len(engine.state()) < 80e6


def test_many_tensors_fall_at_once_and_are_one_incident() -> None:
    engine = Engine(RunInfo.from_json(RECIPE))
    engine.feed(wide(3000, 60))
    found = [f for f in checked(engine)["findings"] if f["severity"] != "info"]
    assert len(found) <= 2
    assert max(f["affected_tensors"] for f in found) >= 1000
    assert len(json.dumps(found)) < 20_000
