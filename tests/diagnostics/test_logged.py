"""What is logged where and how often; what could not be checked; what to log next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floatscope.protocol.json_rows import batch_from_rows
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.calibration import AS_STATED, BASIS
from floatscope_diagnostics.engine import Engine
from floatscope_diagnostics.log_next import span
from floatscope_diagnostics.logged import MAX_RUNS, Coverage, LoggedSteps
from tests.diagnostics.cases import gradient_underflow
from tests.diagnostics.synthetic import Run

RUN = Run(steps=60, seed=21)
INFO, ROWS = RUN.info(), RUN.rows()


UNSURE = replace(AS_STATED, basis=BASIS, intercept=-0.6)  # no answer is sure


def verdict(rows: Sequence[Mapping[str, Any]], info: Mapping[str, Any] = INFO) -> dict[str, Any]:
    engine = Engine(RunInfo.from_json(dict(info)), calibration=UNSURE)
    for rank in sorted({r.get("rank", 0) for r in rows}):
        engine.feed(batch_from_rows([r for r in rows if r.get("rank", 0) == rank], strict=False), rank=rank)
    return engine.verdict().to_json()


def reasons(document: Mapping[str, Any], rule: str) -> dict[str, list[str]]:
    return {n["why"]: n["needs"] for n in document["not_checked"] if n["rule"] == rule}


def without(row: Mapping[str, Any], stat: str, names: str = "") -> dict[str, Any]:
    tensors = {
        n: {k: v for k, v in stats.items() if k != stat or names not in n}
        for n, stats in row["tensors"].items()
    }
    return {**row, "tensors": tensors}


@given(st.lists(st.integers(1, 5), min_size=1, max_size=60), st.integers(-3, 400))
def test_logged_steps_know_their_neighbours(gaps: list[int], asked: int) -> None:
    steps = np.cumsum(gaps).tolist()
    log = LoggedSteps()
    for step in steps:
        log.add(0, step)
        log = LoggedSteps.load(log.state())
    assert log.before(0, asked) == max((s for s in steps if s < asked), default=None)
    assert log.after(0, asked) == min((s for s in steps if s > asked), default=None)


def test_logged_steps_are_bounded_and_keep_the_newest() -> None:
    log = LoggedSteps()
    rng = np.random.default_rng(0)
    steps = np.cumsum(rng.integers(1, 99, 5000)).tolist()
    for step in steps:
        log.add(0, step)
    assert len(log.state()) <= MAX_RUNS
    assert log.before(0, 2**62) == steps[-1]


def test_a_segment_knows_the_steps_before_it() -> None:
    log = LoggedSteps()
    for segment, steps in ((0, range(0, 80)), (1, range(50, 60))):
        for step in steps:
            log.add(segment, step)
    assert log.before(1, 50) is None
    assert log.clean_before(1, 50) == 49
    assert log.clean_before(1, 55) == 54
    assert log.clean_before(0, 0) is None


def test_coverage_survives_saving_and_counts_rows() -> None:
    coverage = Coverage()
    for k in range(20):
        coverage.note_scalars(("lr", "loss"), np.array([[k % 5 == 0, True]]))
    coverage.note_stats({"amax": np.array([[True, False], [False, False]])})
    coverage.note_stats({"amax": np.array([[False, False, True]])})
    again = Coverage.load(coverage.state())
    assert again.every(again.scalars["lr"]) == 5
    assert again.stats == {"amax": 2}
    assert again.has("amax", 4).tolist() == [True, False, True, False]
    assert again.has("rms", 2).tolist() == [False, False]


def test_a_complete_log_lacks_only_what_no_rule_of_one_rank_can_see() -> None:
    for entry in verdict(ROWS)["not_checked"]:
        assert entry["why"] in (
            "not logged", "no baseline is set and ref_loss is not logged", "one rank only",
        )  # fmt: skip


def test_statistics_of_every_tenth_step_are_said_to_be() -> None:
    rows = [{k: v for k, v in r.items() if k != "tensors" or r["step"] % 10 == 0} for r in ROWS]
    found = reasons(verdict(rows), "FS203")
    assert found["only every 10th step"] == [
        "*/input|weight|grad_output scale",
        "*/input|weight|grad_output amax",
    ]


def test_scalars_of_every_second_step_are_said_to_be() -> None:
    rows = [{k: v for k, v in r.items() if k != "lr" or r["step"] % 2 == 0} for r in ROWS]
    assert reasons(verdict(rows), "FS427") == {"only every 2nd step": ["lr"]}


def test_a_statistic_that_some_tensors_lack_is_counted() -> None:
    rows = [without(r, "underflow_pct", "blocks.0") for r in ROWS]
    assert "missing on 2 of 4 tensors" in reasons(verdict(rows), "FS301")
    assert "missing on 6 of 12 tensors" in reasons(verdict(rows), "FS202")


def test_a_role_that_is_missing_is_named() -> None:
    rows = [without(r, "underflow_pct", "/grad_output") for r in ROWS]
    assert reasons(verdict(rows), "FS301")["not logged"] == ["*/grad_output underflow_pct"]
    assert "*/grad_output underflow_pct" in reasons(verdict(rows), "FS202")["not logged"]


def test_a_tensor_that_is_never_cast_lacks_no_scale() -> None:
    info = {**INFO, "tensors": {**INFO["tensors"], "head/input": {"format": "bf16", "call_order": 9}}}
    rows = [{**r, "tensors": {**r["tensors"], "head/input": {"amax": 1.0}}} for r in ROWS]
    assert reasons(verdict(rows, info), "FS203") == {}


def test_ranks_that_lack_a_signal_are_named() -> None:
    rows = [
        {**{k: v for k, v in r.items() if k != "lr" or rank == 0}, "rank": rank}
        for rank in (0, 1)
        for r in ROWS
    ]
    assert reasons(verdict(rows, {**INFO, "ranks": 2}), "FS427") == {"not logged on rank 1": ["lr"]}


def test_only_loss_and_gradient_norm_give_a_symptom_candidates_and_what_to_log() -> None:
    rows = [{"step": s, "loss": 2.5 + 0.01 * (s % 5), "grad_norm": 1.0 + 0.1 * (s % 3)} for s in range(60)]
    rows[50:] = [{"step": s, "loss": float("nan"), "grad_norm": float("nan")} for s in range(50, 60)]
    found = verdict(rows, {})["findings"][0]
    assert (found["cause"], found["symptom"]) == ("undetermined", "nonfinite")
    assert [a["cause"] for a in found["alternatives"]] == ["invalid_input", "op_kernel_fault"]
    assert found["confidence"] < 0.6
    assert found["decisive_test"].startswith("Replay the step with the next batch")
    assert found["log_next"][0]["signal"] == "nan_count"
    assert found["log_next"][0]["tensors"] == "*/input|output"


def test_what_to_log_next_names_the_layers_and_the_reason() -> None:
    case = next(c for c in gradient_underflow.CASES if c.want)
    rows = [
        {k: v for k, v in r.items() if k not in ("tensors", "zero_grad_pct")}
        | ({"tensors": r["tensors"]} if r["step"] % 2 == 0 else {})
        for r in case.rows
    ]
    found = next(f for f in verdict(rows, case.info)["findings"] if f["cause"] == "gradient_underflow")
    wish = next(w for w in found["log_next"] if w["signal"] == "underflow_pct")
    assert wish["tensors"] == "blocks.0-1.*/grad_output"
    assert (wish["every"], wish["steps"]) == (1, 50)
    assert wish["text"] == "log underflow_pct of blocks.0-1.*/grad_output at every step for 50 steps"
    assert wish["why"] == "only every 2nd step; FS301 needs it for gradient underflow"


@pytest.mark.parametrize(
    ("tensors", "pattern"),
    [
        ((), "*"),
        (("a.1.b/input",), "a.1.b"),
        (("layers.0/input", "layers.3/weight", "layers.2/input"), "layers.0-3"),
        (("layers.0.fc1/input", "layers.11.fc1/input"), "layers.0-11.fc1"),
        (("layers.0.fc1/input", "layers.0.fc2/input"), "layers.0.*"),
        (("a.1/input", "b.1/input"), "*"),
        (("head/input", "emb/output"), "*"),
    ],
)
def test_layers_as_one_pattern(tensors: tuple[str, ...], pattern: str) -> None:
    assert span(tensors) == pattern
