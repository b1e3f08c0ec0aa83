"""The engine's promises: one answer under any chunking, interleaving of ranks and restarts; bounded; honest
about order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from floatscope.protocol.batch import lost_batch
from floatscope.protocol.json_rows import batch_from_rows
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.calibration import AS_STATED
from floatscope_diagnostics.engine import Engine
from floatscope_diagnostics.state_codec import StateError, pack
from tests.diagnostics.cases import (
    amax_history_poisoning,
    invalid_input,
    quantization_drift,
    scale_state_fault,
    slow_rise,
)
from tests.diagnostics.curve_rows import BARE
from tests.diagnostics.synthetic import Run

NO_SHRINK = (
    Phase.explicit,
    Phase.reuse,
    Phase.generate,
)  # a whole engine run an example: shrinking takes minutes
Rows = Sequence[Mapping[str, Any]]
SAMPLES = {
    "poison": amax_history_poisoning.POISON,
    "nan": invalid_input.NAN,
    "frozen": scale_state_fault.FROZEN,
    "baseline": quantization_drift.GAP,
    "healthy": Run(steps=70, seed=21),
}
LOGS: dict[str, tuple[RunInfo, Rows]] = {
    name: (RunInfo.from_json(run.info()), run.rows()) for name, run in SAMPLES.items()
}
LOGS["curves"] = (RunInfo.from_json(BARE), slow_rise.CASES[0].rows)


def whole(info: RunInfo, rows: Rows) -> dict[str, Any]:
    engine = Engine(info)
    engine.feed(batch_from_rows(rows))
    return engine.verdict().to_json()


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow], phases=NO_SHRINK)
@given(st.sampled_from(sorted(LOGS)), st.lists(st.integers(1, 30), min_size=1, max_size=12), st.data())
def test_any_chunking_with_restarts_gives_the_same_verdict(
    name: str, sizes: list[int], data: st.DataObject
) -> None:
    info, rows = LOGS[name]
    engine = Engine(info)
    at, k = 0, 0
    while at < len(rows):
        size = sizes[k % len(sizes)]
        engine.feed(batch_from_rows(rows[at : at + size]))
        at, k = at + size, k + 1
        if data.draw(st.booleans()):
            engine = Engine.restore(info, engine.state())
        if data.draw(st.booleans()):
            engine.verdict()  # looking changes nothing
    assert engine.verdict().to_json() == whole(info, rows)


def two_ranks() -> tuple[RunInfo, list[Rows]]:
    run = Run(steps=60, before=amax_history_poisoning.outlier, extra_run={"ranks": 2})
    return RunInfo.from_json(run.info()), [run.rows(), run.rows()]


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow], phases=NO_SHRINK)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 9)), max_size=40))
def test_any_interleaving_of_ranks_gives_the_same_verdict(order: list[tuple[int, int]]) -> None:
    info, ranks = two_ranks()
    expected = Engine(info)
    for start in range(0, 60, 20):
        for rank in (0, 1):
            expected.feed(batch_from_rows(ranks[rank][start : start + 20]), rank=rank)
    engine = Engine(info)
    at = [0, 0]
    for rank, size in [*order, (0, 60), (1, 60)]:
        part = ranks[rank][at[rank] : at[rank] + size]
        if part:
            engine.feed(batch_from_rows(part), rank=rank)
            at[rank] += size
    assert engine.verdict().to_json() == expected.verdict().to_json()


def resumed_rows() -> list[dict[str, Any]]:
    """Steps 100 to 149, and from 130 on again with weights that are no longer quite those of before."""
    again = Run(steps=40, first_step=130, seed=8).rows()
    for row in again:
        row["param_norm"] *= 1.001
        row["tensors"] = {
            n: {**t, "amax": t["amax"] * 1.003} if n.endswith("/weight") else t
            for n, t in row["tensors"].items()
        }
    return [*Run(steps=50).rows(), *again]


@pytest.mark.parametrize("behind", [0, 10, 21, 35, 50])
@pytest.mark.parametrize("declared", [2, None])
def test_a_backlog_that_arrives_after_another_rank_has_gone_back_is_no_divergence(
    behind: int, declared: int | None
) -> None:
    rows = resumed_rows()
    info = RunInfo.from_json(Run(extra_run={"ranks": declared}).info())
    engine = Engine(info)
    parts = [(0, 0, 50), (1, 0, 50 - behind), (0, 50, 70), (1, 50 - behind, 50), (1, 50, 90), (0, 70, 90)]
    for rank, start, stop in parts:
        if stop > start:
            engine.feed(batch_from_rows(rows[start:stop]), rank=rank)
            engine = Engine.restore(info, engine.state())
    causes = {f["cause"] for f in engine.verdict().to_json()["findings"]}
    assert "rank_divergence" not in causes


def test_ranks_that_part_after_a_resume_are_seen_though_one_had_lost_its_last_steps() -> None:
    rows = resumed_rows()
    rows[50]["resumed"] = 1.0
    apart = [{**row, "param_norm": row["param_norm"] * 1.01} for row in rows[70:]]
    engine = Engine(RunInfo.from_json(Run(extra_run={"ranks": 2}).info()))
    engine.feed(batch_from_rows(rows[:50]), rank=0)
    engine.feed(batch_from_rows(rows[:25]), rank=1)
    for rank, last in ((0, rows[70:]), (1, apart)):
        engine.feed(batch_from_rows([*rows[50:70], *last]), rank=rank)
    first = engine.verdict().to_json()["findings"][0]
    assert (first["cause"], first["onset_step"]) == ("rank_divergence", 150)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow], phases=NO_SHRINK)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 25)), max_size=20))
def test_a_baseline_may_come_before_between_or_after(order: list[tuple[bool, int]]) -> None:
    info, logged = LOGS["baseline"]
    rows = [{k: v for k, v in r.items() if k != "ref_loss"} for r in logged]
    steps = np.array([r["step"] for r in logged])
    losses = np.array([r["ref_loss"] for r in logged])
    engine = Engine(info, calibration=AS_STATED)
    at = {True: 0, False: 0}
    for own, size in [*order, (True, 200), (False, 200)]:
        a, b = at[own], min(at[own] + size, len(rows))
        if own and b > a:
            engine.feed(batch_from_rows(rows[a:b]))
        elif b > a:
            engine.feed_baseline(steps[a:b], losses[a:b])
        at[own] = b
    first = Engine(info, calibration=AS_STATED)
    first.feed_baseline(steps, losses)
    first.feed(batch_from_rows(rows))
    assert engine.verdict().to_json() == first.verdict().to_json()
    assert engine.verdict().to_json()["findings"][0]["cause"] == "quantization_drift"


def test_an_early_verdict_never_speaks_of_a_later_step() -> None:
    for info, rows in LOGS.values():
        engine = Engine(info)
        for row in rows[:45]:
            engine.feed(batch_from_rows([row]))
            for finding in engine.verdict().to_json()["findings"]:
                assert finding["onset_step"] <= finding["detected_step"] <= row["step"]


def test_a_finding_keeps_its_id_while_the_run_goes_on() -> None:
    info, rows = LOGS["poison"]
    engine = Engine(info)
    seen: list[str] = []
    for row in rows:
        engine.feed(batch_from_rows([row]))
        seen += [
            f["id"] for f in engine.verdict().to_json()["findings"] if f["cause"] == "amax_history_poisoning"
        ]
    assert len(set(seen)) == 1
    assert len(seen) > 5


def test_a_step_that_goes_back_opens_a_segment_and_is_said() -> None:
    info, rows = LOGS["healthy"]
    engine = Engine(info)
    engine.feed(batch_from_rows(rows[:40]))
    engine.feed(batch_from_rows(rows[20:]))
    verdict = engine.verdict().to_json()
    assert verdict["status"] == "healthy"
    assert verdict["source"]["notes"] == ["step numbers restart after step 139"]


def test_a_hole_is_said_and_hurts_nothing() -> None:
    info, rows = LOGS["healthy"]
    engine = Engine(info)
    engine.feed(batch_from_rows(rows[:30]))
    engine.feed(lost_batch(130, 139))
    engine.feed(batch_from_rows(rows[40:]))
    verdict = engine.verdict().to_json()
    assert verdict["status"] == "healthy"
    assert verdict["source"]["notes"] == ["steps 130 to 139 were lost before they could be sent"]


def test_every_second_step_is_enough_for_a_healthy_verdict() -> None:
    info, rows = LOGS["healthy"]
    assert whole(info, rows[::2])["status"] == "healthy"


def test_tensors_may_arrive_late_and_in_any_order() -> None:
    info, rows = LOGS["poison"]
    part = [{**r, "tensors": {k: v for k, v in r["tensors"].items() if "fc2" in k}} for r in rows[:10]]
    engine = Engine(info)
    engine.feed(batch_from_rows(part))
    engine.feed(batch_from_rows(rows[10:]))
    causes = [f["cause"] for f in engine.verdict().to_json()["findings"]]
    assert causes == ["amax_history_poisoning"]


def test_the_state_is_bounded_in_steps() -> None:
    run = Run(steps=400, history=32)
    info = RunInfo.from_json(run.info())
    rows = run.rows()
    engine = Engine(info)
    engine.feed(batch_from_rows(rows[:200]))
    early = len(engine.state())
    engine.feed(batch_from_rows(rows[200:]))
    waiting = 200 * 16  # own losses that wait for a baseline that may still be named, at most 4,096 of them
    assert len(engine.state()) < 1.05 * early + waiting


@pytest.mark.parametrize("state", [b"", b"FSD1garbage", pack({"version": 99})])
def test_a_foreign_state_is_refused(state: bytes) -> None:
    with pytest.raises(StateError):
        Engine.restore(RunInfo(), state)


def test_a_crash_reported_later_changes_the_verdict() -> None:
    info, rows = LOGS["healthy"]
    engine = Engine(info)
    engine.feed(batch_from_rows(rows))
    assert engine.verdict().status == "healthy"
    engine.finish("crashed", "IndexError: index out of range in self")
    assert engine.verdict().to_json()["findings"][0]["kind"] == "id_out_of_range"


VALUES = st.one_of(
    st.floats(width=32, allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, 1e-45, 3e38, -1.0, float("nan")]),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], phases=NO_SHRINK)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 6),
            VALUES,
            VALUES,
            VALUES,
            VALUES,
            st.sampled_from(["a/input", "b/weight", "c/grad_output", "x"]),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_absurd_numbers_give_a_verdict_and_no_warning(
    rows: list[tuple[int, float, float, float, float, str]],
) -> None:
    """NaN, Inf, denormals, 3e38, negative scales, repeated steps: always a document that is valid JSON."""
    engine = Engine(RunInfo.from_json({"recipe": {"name": "fp8_delayed_scaling", "amax_history_len": 4}}))
    for step, loss, amax, scale, share, name in rows:
        stats = {"amax": amax, "scale": scale, "underflow_pct": share, "overflow_pct": share, "sqnr_db": loss}
        engine.feed(batch_from_rows([{"step": step, "loss": loss, "lr": amax, "tensors": {name: stats}}]))
        engine = Engine.restore(engine.run, engine.state())
    document = engine.verdict().to_json()
    assert document["status"] in ("healthy", "watch", "warning", "critical")
    assert "NaN" not in str([f["confidence"] for f in document["findings"]])
