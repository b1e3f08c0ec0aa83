"""Changes of tensors: what a class does together, rows that are missing, noise that is no change."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope_diagnostics import stream
from floatscope_diagnostics.detectors.common_shift import MIN_TENSORS, common_rise
from floatscope_diagnostics.detectors.tensor_levels import ABSENT_ROWS, RETURN_ROWS
from floatscope_diagnostics.episodes import Symptom
from tests.diagnostics.tensor_rows import Float64, batch_of, names_of, signals, stream_of, symptoms

LAYERS = 8
NAMES = names_of(LAYERS)
INPUTS = np.array([n.endswith("/input") for n in NAMES])
GRADIENTS = np.array([n.endswith("/grad_output") for n in NAMES])
ROWS = 60
AT = 40
PAGES = {"clipping", "clipping_grad", "underflow", "headroom_up", "sqnr_drop", "sqnr_drop_all", "unchanged"}


def amaxes(rows: int = ROWS, *, seed: int = 0, names: tuple[str, ...] = NAMES) -> Float64:
    """log2 amax of a quiet run: activations and gradients wander, weights hardly."""
    wander = np.array([0.03 if n.endswith("weight") else 0.15 for n in names])
    values: Float64 = np.random.default_rng(seed).normal(0.0, 1.0, (rows, len(names))) * wander
    return values


def found(
    log2_amax: Float64, *, names: tuple[str, ...] = NAMES, steps: Sequence[int] | None = None
) -> list[Symptom]:
    return symptoms(stream_of(names), batch_of(names, {"amax": np.exp2(log2_amax)}, steps=steps))


def test_a_batch_that_raises_all_gradients_is_no_jump_of_any() -> None:
    x = amaxes()
    x[AT, GRADIENTS] += 2.2
    assert "amax_jump" not in signals(found(x))


def test_a_gradient_that_jumps_beyond_a_hard_batch_is_found_alone() -> None:
    x = amaxes()
    x[AT, GRADIENTS] += 2.0
    x[AT, 2] += 10.0
    (jump,) = [s for s in found(x) if s.signal == "amax_jump"]
    assert jump.tensors == (NAMES[2],)
    assert jump.onset == 1000 + AT


@pytest.mark.parametrize("log2", [2.0, 4.0])
def test_a_jump_of_a_whole_class_is_seen_in_what_it_has_in_common(log2: float) -> None:
    x = amaxes()
    x[AT:, INPUTS] += log2
    got = {s.signal: s for s in found(x)}
    assert set(got["amax_jump"].tensors) == set(np.array(NAMES)[INPUTS])


def test_half_a_class_is_not_the_class() -> None:
    x = amaxes()
    half = np.flatnonzero(INPUTS)[: LAYERS // 2]
    x[AT, half] += 4.0
    got = {s.signal: s for s in found(x)}
    assert set(got["amax_jump"].tensors) == {NAMES[i] for i in half}


def test_few_tensors_have_nothing_in_common() -> None:
    names = names_of(MIN_TENSORS - 1)
    x = amaxes(names=names)
    x[AT, [n.endswith("/input") for n in names]] += 4.0
    got = {s.signal: s for s in found(x, names=names)}
    assert len(got["amax_jump"].tensors) == MIN_TENSORS - 1


@given(st.lists(st.floats(-50, 50) | st.just(float("nan")), max_size=12), st.floats(-5, 5))
def test_the_common_part_moves_with_the_class_and_is_never_a_fall(values: list[float], by: float) -> None:
    rise = np.array(values)
    members = [np.arange(len(rise))]
    judged = np.ones(len(rise), bool)
    known = int((~np.isnan(rise)).sum())
    common = common_rise(rise, judged, members)[0]
    assert common >= 0.0
    assert known >= MIN_TENSORS or common == 0.0
    if common > 0.0:
        assert (rise >= common).sum() * 2 > known  # more than half rose at least so far
        moved = common_rise(rise + by, judged, members)[0]
        assert moved == pytest.approx(max(0.0, common + by))


def noise(kind: str, rows: int, size: int) -> Float64:
    rng = np.random.default_rng(3)
    if kind == "white":
        return rng.normal(0.0, 1.0, (rows, size))
    heavy: Float64 = rng.standard_t(4, (rows, size)) / np.sqrt(2.0)
    return heavy  # unit variance, kurtosis infinite


@pytest.mark.parametrize("kind", ["white", "heavy"])
def test_noise_as_wide_as_that_of_healthy_runs_pages_nobody(kind: str) -> None:
    """600 tensors over 400 rows: with a budget of one false page a family in 7.8 million steps, five families
    and noise no worse than what the limits were fitted to, none is expected (3e-4).
    """
    names = names_of(200)
    rows = 400
    spread = np.array(
        [{"input": 0.16, "weight": 0.03, "grad_output": 0.35}[n.rpartition("/")[2]] for n in names]
    )
    x = noise(kind, rows, len(names)) * spread
    stats = {
        "amax": np.exp2(x),
        "scale": np.full(x.shape, 64.0),
        "overflow_pct": np.maximum(0.0, noise(kind, rows, len(names)) * 0.01),
        "underflow_pct": 0.5 + np.abs(noise(kind, rows, len(names)) * 0.1),
        "sqnr_db": 30.0 + noise(kind, rows, len(names)) * 0.1,
        "unchanged_pct": np.abs(noise(kind, rows, len(names)) * 0.01),
    }
    assert not signals(symptoms(stream_of(names), batch_of(names, stats))) & PAGES


def test_a_tensor_logged_in_every_other_row_lasts_as_well() -> None:
    names = names_of(1, ("input",))
    lost = np.full((40, 1), 0.1)
    lost[20:] = 6.0
    lost[1::2] = np.nan
    other = np.full((40, 1), 1.0)
    both = (*names, "other/input")
    stats = {"underflow_pct": np.hstack([lost, lost * np.nan]), "amax": np.hstack([lost * np.nan, other])}
    stats["underflow_pct"][:, 0] = np.where(np.isnan(lost[:, 0]), np.nan, lost[:, 0])
    judge = stream_of(both)
    quiet = np.tile([[0.1], [np.nan]], (20, 1))
    symptoms(judge, batch_of(both, {"underflow_pct": np.hstack([quiet, quiet * np.nan])}, steps=range(40)))
    got = symptoms(judge, batch_of(both, stats, steps=range(40, 80)))
    (low,) = [s for s in got if s.signal == "underflow"]
    assert low.onset == 60
    assert low.detected == 64


def test_a_tensor_that_comes_back_after_long_is_learned_afresh() -> None:
    x = amaxes(RETURN_ROWS + 80)
    x[30 : 30 + RETURN_ROWS, 0] = np.nan
    x[30 + RETURN_ROWS :, 0] += 5.0
    assert "amax_jump" not in signals(found(x))
    y = amaxes(RETURN_ROWS + 80)
    y[30 : 30 + ABSENT_ROWS, 0] = np.nan
    y[30 + ABSENT_ROWS :, 0] += 5.0
    assert "amax_jump" in signals(found(y))


def test_a_tensor_that_appears_late_is_judged_once_its_level_is_known() -> None:
    x = amaxes(100)
    x[:40, 0] = np.nan
    x[80, 0] += 5.0
    (jump,) = [s for s in found(x) if s.signal == "amax_jump"]
    assert jump.tensors == (NAMES[0],)
    assert jump.onset == 1080


def test_after_a_hole_in_the_log_levels_are_learned_afresh() -> None:
    x = amaxes()
    x[AT:] += 3.0
    steps = [*range(1000, 1000 + AT), *range(9000, 9000 + ROWS - AT)]
    assert "amax_jump" not in signals(found(x, steps=steps))
    assert "amax_jump" in signals(found(x, steps=range(0, 100 * ROWS, 100)))  # every 100th step: no hole


def test_a_fault_in_every_nth_logged_step_keeps_its_onset() -> None:
    x = amaxes()
    x[AT, 0] += 4.0
    (jump,) = [s for s in found(x, steps=range(0, 16 * ROWS, 16)) if s.signal == "amax_jump"]
    assert jump.onset == 16 * AT
    assert jump.rows == 1


def test_the_level_stands_still_while_something_is_wrong() -> None:
    names = names_of(1, ("input",))
    clipped = np.zeros((120, 1))
    clipped[30:] = 9.0
    stats = {"amax": np.full((120, 1), 1.0), "scale": np.full((120, 1), 448.0), "overflow_pct": clipped}
    (clip,) = [s for s in symptoms(stream_of(names), batch_of(names, stats)) if s.signal == "clipping"]
    assert clip.open
    assert clip.onset == 1030


@settings(max_examples=25, deadline=None)
@given(data=st.data(), chunk=st.integers(1, 40), seed=st.integers(0, 9))
def test_symptoms_do_not_depend_on_how_rows_arrive(data: st.DataObject, chunk: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = names_of(4)
    x = amaxes(90, seed=seed, names=names)
    for _ in range(data.draw(st.integers(0, 4))):
        row, column = int(rng.integers(90)), int(rng.integers(len(names)))
        x[row : row + int(rng.integers(1, 40)), column] += rng.normal(0, 6)
    x[rng.random(x.shape) < data.draw(st.sampled_from([0.0, 0.1, 0.6]))] = np.nan
    x[20:45, int(rng.integers(len(names)))] = np.nan
    gaps = rng.choice([1, 1, 1, 1, 400], 90)
    stats = {
        "amax": np.exp2(x),
        "scale": np.full(x.shape, 200.0),
        "underflow_pct": np.abs(x) * 4,
        "overflow_pct": np.maximum(x, 0),
        "sqnr_db": 30 - np.abs(x),
    }
    batch = batch_of(names, stats, steps=np.cumsum(gaps).tolist())
    whole, parts = stream_of(names), stream_of(names)
    assert repr(symptoms(whole, batch)) == repr(symptoms(parts, batch, chunk=chunk))


def test_a_batch_of_very_many_tensors_is_judged_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    x = amaxes()
    x[AT, 0] += 5.0
    whole = found(x)
    monkeypatch.setattr(stream, "MAX_FRAME_VALUES", 3 * len(NAMES))
    assert repr(found(x)) == repr(whole)
