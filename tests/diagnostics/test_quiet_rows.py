"""Very long runs: rows that nobody needs to see one by one are passed over, and nothing is missed by it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from floatscope.protocol.batch import Batch
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics import quiet_rows
from floatscope_diagnostics.engine import Engine
from floatscope_diagnostics.logged import LoggedSteps

Floats = NDArray[np.float64]
ROWS = 6_000
SHORT = {"LONG_ROWS": 1_536, "BLOCK_ROWS": 256, "SAMPLES": 32, "ONE_SIGMA": 21, "THIN_ROWS": 64}
AT = 4_300


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thins from row 1,536 on instead of 8,192, so that tests are short."""
    for name, value in SHORT.items():
        monkeypatch.setattr(quiet_rows, name, value)


def series(seed: int = 0, rows: int = ROWS) -> dict[str, Floats]:
    rng = np.random.default_rng(seed)
    at = np.arange(rows)
    return {
        "loss": 2.5 + 6 * np.exp(-at / 300) + rng.normal(0, 0.04, rows),
        "grad_norm": np.exp(rng.normal(0, 0.1, rows)),
        "lr": 3e-4 * np.cos(at / rows),
        "step_time_s": 0.4 * np.exp(rng.normal(0, 0.03, rows)),
        "loss_scale": np.full(rows, 65536.0),
        "eval_loss": np.where(at % 250 == 249, 2.6 + rng.normal(0, 0.01, rows), np.nan),
    }


def batches(columns: Mapping[str, Floats], cuts: list[int], step: NDArray[np.int64]) -> Iterator[Batch]:
    """NaN in eval_loss is missing, elsewhere it is a value."""
    names = tuple(columns)
    values = np.stack([columns[n] for n in names], axis=1)
    present = np.stack(
        [~np.isnan(columns[n]) if n == "eval_loss" else np.ones(len(step), bool) for n in names], 1
    )
    edges = sorted({0, len(step), *(c for c in cuts if 0 < c < len(step))})
    for a, b in pairwise(edges):
        yield Batch(
            step=step[a:b],
            time=np.full(b - a, np.nan),
            scalar_names=names,
            scalars=np.where(present[a:b], values[a:b], 0.0),
            scalars_present=present[a:b],
        )


def fed(columns: Mapping[str, Floats], cuts: list[int], step: NDArray[np.int64] | None = None) -> Engine:
    engine = Engine(RunInfo())
    steps = np.arange(len(columns["loss"])) if step is None else step
    for batch in batches(columns, cuts, steps):
        engine.feed(batch)
    return engine


def found(engine: Engine) -> list[tuple[str, str, str, int]]:
    verdict = engine.verdict()
    return [(j.finding.rule, j.finding.cause, j.finding.severity, j.finding.onset) for j in verdict.findings]


def said(engine: Engine) -> str:
    """The whole verdict as text, so that NaN equals NaN."""
    return json.dumps(engine.verdict().to_json())


def nan(c: dict[str, Floats]) -> None:
    c["loss"][AT:] = np.nan


def one_nan(c: dict[str, Floats]) -> None:
    c["loss"][AT] = np.nan


def spike(c: dict[str, Floats]) -> None:
    c["loss"][AT] += 3.0
    c["grad_norm"][AT] *= 20.0


def shift(c: dict[str, Floats]) -> None:
    c["loss"][AT:] += 2.0


def rate(c: dict[str, Floats]) -> None:
    c["lr"][AT:] *= 10.0
    c["loss"][AT:] += np.minimum(5.0, 0.05 * np.arange(ROWS - AT))


def collapse(c: dict[str, Floats]) -> None:
    for k in range(16):
        c["loss_scale"][AT + 4 * k :] /= 2.0


def slow(c: dict[str, Floats]) -> None:
    c["step_time_s"][AT:] *= 4.0


def zero(c: dict[str, Floats]) -> None:
    c["loss"][AT:] = 0.0
    c["grad_norm"][AT:] = 0.0


def rate_off(c: dict[str, Floats]) -> None:
    c["lr"][AT:] = 0.0


def nothing(c: dict[str, Floats]) -> None:
    return


FAULTS = (nan, one_nan, spike, shift, rate, collapse, slow, zero, rate_off, nothing)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: str(f.__name__))
def test_a_thinned_run_has_the_findings_of_the_whole_run(
    fault: Any, early: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = series()
    fault(columns)
    thin = fed(columns, [2_000, 4_000])
    monkeypatch.setattr(quiet_rows, "LONG_ROWS", 1 << 60)
    whole = fed(columns, [2_000, 4_000])
    assert [f[:3] for f in found(thin)] == [f[:3] for f in found(whole)]
    assert all(abs(a[3] - b[3]) <= 4 for a, b in zip(found(thin), found(whole), strict=True))
    assert thin.verdict().last_clean_step == whole.verdict().last_clean_step
    assert thin._streams[0].judged < 3_000 < whole._streams[0].judged == ROWS


@settings(max_examples=15, deadline=None)
@example(fault=nan, seed=0, cuts=[3_249], tail=3.0, restart=3_000)  # between the last sample and the border
@given(
    fault=st.sampled_from(FAULTS),
    seed=st.integers(0, 99),
    cuts=st.lists(st.integers(1, ROWS), max_size=30),
    tail=st.sampled_from([None, 3.0]),
    restart=st.sampled_from([None, 1_000, 3_000]),
)
def test_any_cut_into_batches_gives_the_same_state_and_findings(
    fault: Any, seed: int, cuts: list[int], tail: float | None, restart: int | None
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SHORT.items():
            patch.setattr(quiet_rows, name, value)
        columns = series(seed)
        fault(columns)
        if tail is not None:
            columns["loss"] += 0.05 * np.random.default_rng(seed).standard_t(tail, ROWS)
        step = np.arange(ROWS)
        if restart is not None:
            step[restart:] -= 500
        whole, parts = fed(columns, [], step), fed(columns, cuts, step)
        assert said(whole) == said(parts)
        assert whole._streams[0].judged == parts._streams[0].judged
        saved = Engine.restore(RunInfo(), parts.state())
        extra = series(seed + 1, 700)
        for engine in (whole, saved):
            for batch in batches(extra, [133] if engine is saved else [], np.arange(ROWS, ROWS + 700)):
                engine.feed(batch)
        assert said(whole) == said(saved)


def test_short_runs_are_judged_row_by_row() -> None:
    engine = fed(series(), [64])
    assert engine._streams[0].judged == ROWS < quiet_rows.LONG_ROWS


def test_steps_and_last_values_are_those_of_all_rows(early: None) -> None:
    columns = series()
    engine = fed(columns, [1_000, 5_001], np.arange(ROWS) * 10)
    stream = engine._streams[0]
    source = engine.verdict().source
    assert (source.steps, source.first_step, source.last_step) == (ROWS, 0, 10 * ROWS - 10)
    assert stream.stride() == 10
    assert stream.coverage.rows == ROWS
    assert stream.coverage.scalars["eval_loss"] == ROWS // 250
    assert stream.last_scalars["loss"] == columns["loss"][-1]
    assert stream.logged.before(0, 50_005) == 50_000


def test_a_second_rank_ends_the_thinning(early: None) -> None:
    engine = Engine(RunInfo())
    for batch in batches(series(), [3_000], np.arange(ROWS)):
        engine.feed(batch, rank=0)
        engine.feed(batch, rank=1)
    assert engine._streams[0].judged < ROWS
    assert engine._streams[1].judged == ROWS


@given(st.lists(st.integers(1, 3), max_size=60), st.lists(st.integers(0, 60), max_size=6))
def test_logged_steps_may_come_in_any_cut(gaps: list[int], cuts: list[int]) -> None:
    steps = np.cumsum([5, *gaps]).astype(np.int64)
    one, many = LoggedSteps(), LoggedSteps()
    for step in steps.tolist():
        one.add(0, step)
    edges = sorted({0, len(steps), *(c for c in cuts if c < len(steps))})
    for a, b in pairwise(edges):
        many.extend(0, steps[a:b])
    assert one.state() == many.state()
