"""Whatever numbers a log holds, in any order: a verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floatscope.protocol.batch import lost_batch
from floatscope.protocol.errors import ProtocolError
from floatscope.protocol.json_rows import batch_from_rows
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.engine import Engine
from tests.diagnostics.strange import RECIPE, ROW, SCALARS, SLOW, STAT, STATS, STRANGE, TENSORS, checked


@SLOW
@given(st.lists(st.tuples(st.integers(0, 2), ROW), min_size=1, max_size=40), st.data())
def test_any_numbers_on_any_ranks_in_any_order_with_a_restart_anywhere(
    rows: list[tuple[int, dict[str, Any]]], data: st.DataObject
) -> None:
    info = RunInfo.from_json(RECIPE)
    engine, whole = Engine(info), Engine(info)
    for rank, row in rows:
        batch = batch_from_rows([row])
        whole.feed(batch, rank=rank)
        engine.feed(batch, rank=rank)
        if data.draw(st.integers(0, 3)) == 0:
            engine = Engine.restore(info, engine.state())
            engine.feed(batch_from_rows([]), rank=rank)
    assert checked(engine) == checked(whole)


@SLOW
@given(STRANGE, STAT, st.integers(1, 90))
def test_a_constant_run_of_any_value_is_judged(scalar: float, stat: float, steps: int) -> None:
    engine = Engine(RunInfo.from_json(RECIPE))
    tensors = {name: dict.fromkeys(STATS, stat) for name in TENSORS}
    row: Mapping[str, Any] = {**dict.fromkeys(SCALARS, scalar), "tensors": tensors}
    engine.feed(batch_from_rows([{**row, "step": s} for s in range(steps)]))
    checked(engine)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_run_that_is_not_finite_from_its_first_step_is_critical(value: float) -> None:
    engine = Engine(RunInfo.from_json(RECIPE))
    engine.feed(batch_from_rows([{"step": s, "loss": value, "grad_norm": value} for s in range(9)]))
    document = checked(engine)
    assert document["status"] == "critical"
    assert document["last_clean_step"] is None


def test_a_gradient_is_not_told_as_its_weight() -> None:
    engine = Engine(RunInfo())
    good, bad = ({"a/weight": {"grad_norm": value}} for value in (0.1, math.nan))
    rows = [
        {"step": s, "loss": math.nan if s > 30 else 2.0, "tensors": bad if s > 30 else good}
        for s in range(40)
    ]
    engine.feed(batch_from_rows(rows))
    finding = engine.verdict().to_json()["findings"][0]
    assert "appears in the loss and the gradient of a/weight at step 31" in finding["summary"]
    assert finding["order"] == "backward"


def test_a_run_of_constant_numbers_is_healthy() -> None:
    engine = Engine(RunInfo())
    engine.feed(batch_from_rows([{"step": s, "loss": 2.5, "lr": 1e-3} for s in range(500)]))
    assert checked(engine)["status"] == "healthy"


def test_statistics_without_scalars_and_scalars_without_statistics() -> None:
    engine = Engine(RunInfo.from_json(RECIPE))
    for s in range(60):
        stats = {"amax": 1.0, "scale": 100.0, "underflow_pct": 1.0}
        only = {"tensors": {"a/input": stats, "b/weight": stats}} if s % 2 else {"loss": 2.0, "tensors": {}}
        engine.feed(batch_from_rows([{"step": s, **only}]))
    assert checked(engine)["findings"] == []


def test_lost_and_empty_batches_are_no_steps() -> None:
    engine = Engine(RunInfo())
    for k in range(300):
        engine.feed(lost_batch(10 * k, 10 * k + 9))
        engine.feed(batch_from_rows([]))
    document = checked(engine)
    assert document["source"]["steps"] == 0
    assert len(engine.state()) < 20_000


def test_a_batch_beyond_the_protocol_is_refused_by_name() -> None:
    with pytest.raises(ProtocolError, match="step"):
        batch_from_rows([{"step": 2**63}])
