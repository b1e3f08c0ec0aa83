"""The benchmarks of the server in small: a spike of one step is in every answer, and the check can fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.server import many, spike
from benchmarks.server.serving import server
from benchmarks.server.telemetry import Shape, Telemetry
from floatscope.protocol import wire_safetensors


def test_a_spike_a_nan_and_an_inf_of_one_step_are_in_every_answer(tmp_path: Path) -> None:
    plan = spike.planted(2 * spike.STEPS + 700)
    few = {"most_points": (1, 7, 900), "most_columns": (1, 60)}
    with server(tmp_path / "data", FLOATSCOPE_DIAGNOSE="0") as running:
        spike.send(running, plan)
        asked, missing = spike.check(running.port, plan, **few)
        assert asked > 100
        assert missing == []
        beside = {what: at + 1 for what, at in plan.at.items()}
        _asked, missing = spike.check(running.port, replace(plan, at=beside), **few)
        assert {line.split(":")[0] for line in missing} == {"spike", "nan", "inf"}  # seen one step beside


def test_many_runs_at_once_lose_nothing() -> None:
    many.report(live=10, ended=5, batches=2)


def test_a_prepared_body_is_the_batch_with_other_steps() -> None:
    shape = Shape(tensors=5, steps=3, variety=2)
    telemetry = Telemetry(shape)
    first, table = wire_safetensors.decode(telemetry.body(0), find_table=lambda _hash: None)
    later, _none = wire_safetensors.decode(telemetry.body(4), find_table=lambda _hash: table)
    assert later.step.tolist() == [12, 13, 14]
    assert later.time.tolist() == [1.7e9 + step for step in later.step]
    assert later.tensor_names == telemetry.names
    for name, values in first.stats.items():
        assert np.array_equal(values, later.stats[name])
