"""What a comparison says of pairs of runs whose truth is known, and of all kinds of bad input."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope_diagnostics.compare.document import document
from floatscope_diagnostics.compare.go import decide
from floatscope_diagnostics.compare.judge import Comparison, Settings, compare
from floatscope_diagnostics.compare.limits import with_presets
from floatscope_diagnostics.compare.pairing import NotComparable
from floatscope_diagnostics.compare.report import report
from floatscope_diagnostics.compare.words import sentence
from floatscope_diagnostics.readers.run_log import UnreadableLog
from floatscope_diagnostics.reports.terminal import Style
from floatscope_diagnostics.verdict import plain_object
from tests.diagnostics.compare.logs import Rows, curve, pair_of, rows_of, side


def judge(run: Rows, base: Rows, *, margin: float = 0.02) -> Comparison:
    return compare(side(run), side(base, label="base"), Settings(margin=margin))


def test_equal_runs_are_equal() -> None:
    rows = rows_of(curve(300).tolist())
    found = judge(rows, rows)
    assert found.decision == "same"
    assert found.first_difference is None
    assert found.parting is None
    assert "equal to the last digit" in sentence(found)


def test_a_difference_without_a_step_is_not_called_no_gap() -> None:
    """The band of the last part may see a difference before the test over all steps names its step."""
    found = judge(*pair_of(np.where(np.arange(1200) >= 500, 0.05, 0.0)))
    text = report(replace(found, parting=None, beyond_margin=None, since=None, shape=None), Style())
    assert "WORSE" in text
    assert "no step can be named yet" in text
    assert "cannot tell an offset from a slope" in text
    assert "no gap" not in text


def test_a_constant_offset_is_found_with_its_step() -> None:
    gap = np.where(np.arange(1200) >= 500, 0.05, 0.0)
    found = judge(*pair_of(gap))
    assert found.decision == "worse"
    assert found.pairs.paired
    assert found.beyond_margin is not None
    assert 496 <= found.beyond_margin.onset_step <= 504
    assert found.judged is not None
    assert found.judged.band.low < 0.05 < found.judged.band.high
    assert found.shape is not None
    assert found.shape.kind == "constant"
    assert sentence(found).startswith("RUN is worse by 0.05")
    assert "since step " in sentence(found)


def test_a_widening_gap_is_a_slope() -> None:
    found = judge(*pair_of(np.maximum(np.arange(1200) - 300, 0) * 1e-4))
    assert found.decision == "worse"
    assert found.shape is not None
    assert found.shape.kind == "widening"
    assert found.shape.per_1000 == pytest.approx(0.1, rel=0.2)


def test_a_difference_inside_the_margin_is_bounded() -> None:
    found = judge(*pair_of(np.full(800, 0.004)))
    assert found.decision == "same"
    assert found.whole is not None
    assert found.judged == found.whole, "a gap that was there from the start is judged over all pairs"
    assert "No difference larger than 0.00" in sentence(found)
    assert judge(*pair_of(np.full(800, 0.004)), margin=0.001).decision == "worse"


def test_too_short_a_run_says_how_many_steps_are_missing() -> None:
    found = judge(*pair_of(np.full(24, 0.013), noise=0.03, seed=9))
    assert found.decision == "undecided"
    assert found.needed.more_steps is None or found.needed.more_steps > 0
    assert "Cannot tell yet" in sentence(found)


def test_a_gap_that_closed_is_told() -> None:
    gap = np.where((np.arange(1500) >= 300) & (np.arange(1500) < 700), 0.1, 0.0)
    found = judge(*pair_of(gap))
    assert found.decision == "same"
    assert found.beyond_margin is not None
    assert "no longer" in sentence(found)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_run_that_goes_non_finite_separates_there(bad: float) -> None:
    run, base = pair_of(np.zeros(200))
    for row in run[150:]:
        row["loss"] = bad
    found = judge(run, base)
    assert found.decision == "worse"
    assert found.nonfinite is not None
    assert found.nonfinite.step == 150
    assert "150" in sentence(found)
    swapped = judge(base, run)
    assert swapped.decision == "better"


def test_one_bad_step_is_no_verdict() -> None:
    run, base = pair_of(np.zeros(200))
    run[50]["loss"] = math.nan
    found = judge(run, base)
    assert found.decision == "same"
    assert found.nonfinite is not None
    assert not found.nonfinite.lasting


def test_a_single_loud_step_is_named() -> None:
    run, base = pair_of(np.zeros(400))
    run[123]["loss"] += 3.0
    found = judge(run, base)
    assert found.loud is not None
    assert (found.loud.largest_step, found.loud.steps) == (123, 1)
    assert "one step stands out: +3.0" in report(found, Style())


def test_different_data_are_not_paired() -> None:
    run, base = rows_of(curve(400, seed=1).tolist()), rows_of(curve(400, seed=2).tolist())
    found = judge(run, base)
    assert not found.pairs.paired
    assert "do not rise and fall together" in found.pairs.why
    for rows, start in ((run, 0), (base, 1000)):
        for k, row in enumerate(rows):
            row["data_id"] = start + k
    assert "data_id" in judge(run, base).pairs.why


def test_single_steps_with_other_data_are_left_out() -> None:
    run, base = pair_of(np.zeros(300))
    for k in range(300):
        base[k]["data_id"] = k
        run[k]["data_id"] = k if k % 10 else -1
        run[k]["loss"] += 0.0 if k % 10 else 5.0
    found = judge(run, base)
    assert found.pairs.paired
    assert found.pairs.mismatched == 30
    assert found.decision == "same"


def test_logs_without_a_common_step_are_read_between_their_steps() -> None:
    loss = curve(800)
    run = rows_of(loss[::2].tolist(), every=2)
    base = rows_of(loss[1::2].tolist(), first=1, every=2)
    found = judge(run, base)
    assert not found.pairs.paired
    assert "between its steps" in found.pairs.why


def test_runs_that_share_no_stretch_are_refused() -> None:
    with pytest.raises(NotComparable, match="share no stretch"):
        judge(rows_of([1.0, 2.0]), rows_of([1.0, 2.0], first=100))


def test_a_log_without_loss_is_refused() -> None:
    with pytest.raises(UnreadableLog, match="logs no loss"):
        side([{"step": 1, "grad_norm": 2.0}])


def test_losses_beyond_any_training_are_compared_without_overflow() -> None:
    run = rows_of([1e308 if k % 2 else -1e308 for k in range(300)])
    document(judge(run, rows_of(curve(300).tolist())))  # numpy's overflow warnings are errors here
    assert np.abs(side(run).loss).max() < 1e31


def test_repeated_and_unordered_steps_count_once() -> None:
    run, base = pair_of(np.full(200, 0.05))
    again = [{"step": 10, "loss": 99.0}, *run[::-1], *[dict(row) for row in run[:50]]]
    found = judge(again, base)
    assert found.run.repeated == 51
    assert found.decision == judge(run, base).decision == "worse"


def test_other_learning_rates_are_told() -> None:
    run, base = pair_of(np.zeros(100))
    for a, b in zip(run, base, strict=True):
        a["lr"], b["lr"] = 1e-3, 2e-3
    found = judge(run, base)
    assert found.lr_differs is not None
    assert found.lr_differs.steps == 100
    assert "learning rates differ" in report(found, Style())


def test_lowest_rank_counts() -> None:
    run, base = pair_of(np.zeros(100))
    other = [{**row, "rank": 1, "loss": 50.0} for row in run]
    assert judge([*other, *run], base).decision == "same"


LOSS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.floats(min_value=0.0, max_value=10.0),
    st.sampled_from([0.0, 1e308, -1e308, 5e-324, math.nan, math.inf]),
)
LOGS = st.lists(st.tuples(st.integers(0, 80), LOSS), min_size=1, max_size=80)


@settings(max_examples=200, deadline=None)
@given(LOGS, LOGS)
def test_any_two_logs_get_a_verdict_or_a_clear_refusal(a: list[Any], b: list[Any]) -> None:
    run = [{"step": s, "loss": v} for s, v in a]
    base = [{"step": s, "loss": v} for s, v in b]
    try:
        found = judge(run, base)
    except NotComparable:
        return
    text = json.dumps(document(found), allow_nan=False)
    assert '"decision"' in text
    go = decide(found, with_presets((), {}))
    assert go.verdict != "go"  # nobody has looked at its findings
    assert report(found, Style(), go)
    json.dumps(plain_object(go.to_json()), allow_nan=False)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-5.0, 5.0), min_size=1, max_size=200), st.integers(0, 2**31))
def test_a_run_never_differs_from_itself(loss: list[float], start: int) -> None:
    rows = rows_of(loss, first=start)
    found = judge(rows, rows)
    assert found.decision in ("same", "undecided")
    assert found.parting is None
    assert found.whole is not None
    assert found.whole.band.mean == 0.0
    assert found.decision == "same" or len(loss) == 1


@settings(max_examples=60, deadline=None)
@given(
    st.floats(-0.2, 0.2),
    st.floats(0.0005, 0.05),
    st.integers(8, 300),
    st.integers(0, 1000),
    st.integers(0, 200),
)
def test_swapping_the_runs_flips_the_sign(offset: float, noise: float, n: int, seed: int, start: int) -> None:
    gap = np.where(np.arange(n) >= start, offset, 0.0)
    run, base = pair_of(gap, noise=noise, seed=seed)
    there, back = judge(run, base), judge(base, run)
    flipped = {"worse": "better", "better": "worse"}
    assert back.decision == flipped.get(there.decision, there.decision)
    assert there.whole is not None
    assert back.whole is not None
    assert back.whole.band.mean == pytest.approx(-there.whole.band.mean, rel=1e-6, abs=1e-12)
    assert back.whole.band.noise.n_eff == pytest.approx(there.whole.band.noise.n_eff, rel=1e-6)
    if there.parting is not None:
        assert back.parting is not None
        assert back.parting.onset_step == there.parting.onset_step
        assert back.parting.sign == -there.parting.sign
