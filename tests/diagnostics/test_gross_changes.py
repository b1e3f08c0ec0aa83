"""Faults too gross to need a level: found in the first steps and while everything grows, and never in a
healthy start."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from floatscope_diagnostics.detectors.gross_changes import FLUSHED_ROWS, KNOWN_ROWS, GrossChanges
from floatscope_diagnostics.episodes import Symptom
from floatscope_diagnostics.state_codec import pack, unpack
from floatscope_diagnostics.stream import RankStream
from tests.diagnostics.case import Case, alarms, diagnose
from tests.diagnostics.synthetic import Change, Run, Tensors
from tests.diagnostics.tensor_rows import Float64, batch_of, names_of, signals, stream_of, symptoms

NAMES = names_of(4)
INPUT, WEIGHT, GRADIENT = 0, 1, 2
ROWS = 40
FMAX = np.array([57344.0 if n.endswith("grad_output") else 448.0 for n in NAMES])
GROSS = {"amax_leap", "idle_after_leap", "flushed_after_leap", "clipped_at_leap", "gradient_flushed"}
TARGET = "blocks.0.mlp.fc2/input"
GRAD = "blocks.1.attn.qkv/grad_output"


def scales(log2_amax: Float64, history: int = 16) -> Float64:
    """Delayed scaling from a fresh start: the first pass has scale 1."""
    amax = np.exp2(np.where(np.isfinite(log2_amax), log2_amax, -30.0))
    out = np.ones_like(amax)
    for t in range(1, len(amax)):
        out[t] = FMAX / amax[max(0, t - history) : t].max(axis=0)
    return out


def growing(rows: int = ROWS, *, seed: int = 0) -> Float64:
    """log2 amax of a warm-up: all grow, by 0.1 to 0.2 octaves a row, and wander."""
    rng = np.random.default_rng(seed)
    wander = np.array([0.01 if n.endswith("weight") else 0.3 for n in NAMES])
    rate = np.array([0.02 if n.endswith("weight") else 0.15 for n in NAMES])
    x: Float64 = np.arange(rows)[:, None] * rate + rng.normal(0.0, 1.0, (rows, len(NAMES))) * wander
    return x


def found(
    log2_amax: Float64, *, over: Float64 | None = None, under: Float64 | None = None, chunk: int = 64
) -> list[Symptom]:
    stats = {"amax": np.exp2(log2_amax), "scale": scales(log2_amax)}
    stats |= {} if over is None else {"overflow_pct": over}
    stats |= {} if under is None else {"underflow_pct": under}
    batch = batch_of(NAMES, stats, steps=range(len(log2_amax)))
    return [s for s in symptoms(stream_of(NAMES), batch, chunk=chunk) if s.signal in GROSS]


@pytest.mark.parametrize("at", [KNOWN_ROWS, 8, 20])
def test_an_outlier_and_the_idle_scale_behind_it_are_found_from_the_third_row_on(at: int) -> None:
    x = growing()
    x[at, INPUT] += 16.0
    got = {s.signal: s for s in found(x)}
    assert (got["amax_leap"].onset, got["amax_leap"].tensors) == (at, (NAMES[INPUT],))
    assert (got["idle_after_leap"].onset, got["idle_after_leap"].tensors) == (at + 1, (NAMES[INPUT],))
    assert got["idle_after_leap"].rows == 16  # as long as the history holds it


def test_a_tensor_that_stays_large_leaves_no_idle_scale() -> None:
    x = growing()
    x[8:, INPUT] += 16.0
    assert signals(found(x)) == {"amax_leap"}


def test_what_rounds_to_zero_meanwhile_is_counted_beyond_what_did_before() -> None:
    x, under = growing(), np.full((ROWS, len(NAMES)), 20.0)
    x[8, INPUT] += 16.0
    under[9:25, INPUT] = 25.0
    assert "flushed_after_leap" not in signals(found(x, under=under))
    under[9:25, INPUT] = 90.0
    (lost,) = [s for s in found(x, under=under) if s.signal == "flushed_after_leap"]
    assert (lost.onset, lost.peak) == (9, 90.0)


def test_a_leap_of_a_weight_or_a_gradient_has_a_limit_of_its_own() -> None:
    x = growing()
    x[8, WEIGHT] += 5.0
    x[12, GRADIENT] += 8.0
    assert {t for s in found(x) for t in s.tensors} == {NAMES[WEIGHT]}


def test_much_of_an_activation_that_clips_counts_only_where_it_leapt() -> None:
    x, over = growing(), np.zeros((ROWS, len(NAMES)))
    over[8, INPUT] = 60.0
    assert not found(x, over=over)
    x[8:, INPUT] += 5.0
    (clip,) = [s for s in found(x, over=over) if s.signal == "clipped_at_leap"]
    assert (clip.onset, clip.last, clip.peak) == (8, 8, 60.0)


def test_a_weight_that_clips_where_it_leaps_is_another_matter() -> None:
    x, over = growing(), np.zeros((ROWS, len(NAMES)))
    x[8:, WEIGHT] += 5.0
    over[8, WEIGHT] = 100.0
    assert "clipped_at_leap" not in signals(found(x, over=over))


def test_a_gradient_that_was_there_and_is_gone_is_found_when_it_stays_gone() -> None:
    x, under = growing(), np.full((ROWS, len(NAMES)), 5.0)
    under[20 : 20 + FLUSHED_ROWS - 1, GRADIENT] = 99.0
    assert not found(x, under=under)
    under[20:, GRADIENT] = 99.0
    (gone,) = found(x, under=under)
    assert (gone.signal, gone.onset, gone.detected) == ("gradient_flushed", 20, 20 + FLUSHED_ROWS - 1)


def test_the_first_pass_of_delayed_scaling_is_no_fault() -> None:
    x, under = growing(), np.full((ROWS, len(NAMES)), 5.0)
    under[:2] = 99.9  # all scales are 1
    assert not found(x, under=under)
    under[:] = 99.9  # nothing was ever there: not for this detector to say
    assert not found(x, under=under)


@pytest.mark.parametrize("seed", range(8))
def test_a_warm_up_is_no_fault(seed: int) -> None:
    assert not found(growing(200, seed=seed))


def test_what_holds_nan_is_passed_over() -> None:
    x = growing()
    x[8, INPUT] = np.inf
    assert not found(x)


def test_a_tensor_logged_in_turns_is_held_against_its_own_last_rows() -> None:
    x = growing()
    x[20, INPUT] += 16.0
    x[1::2, INPUT] = np.nan
    assert {"amax_leap", "idle_after_leap"} <= signals(found(x))


@pytest.mark.parametrize("chunk", [1, 3, 64])
def test_any_cut_into_batches_with_a_restart_gives_the_same(chunk: int) -> None:
    x, under = growing(), np.full((ROWS, len(NAMES)), 5.0)
    x[8, INPUT] += 16.0
    under[9:25, INPUT] = 90.0
    under[20:, GRADIENT] = 99.0
    batch = batch_of(NAMES, {"amax": np.exp2(x), "scale": scales(x), "underflow_pct": under})
    whole = symptoms(stream_of(NAMES), batch)
    stream = stream_of(NAMES)
    for start in range(0, ROWS, chunk):
        stream.feed(batch.rows(start, min(start + chunk, ROWS)), segment=None)
        stream = RankStream.load(unpack(pack(stream.state())), stream.columns, stream.board)
    assert stream.symptoms() == whole


def test_a_state_from_before_is_still_read() -> None:
    stream = stream_of(NAMES)
    state = {k: v for k, v in stream.state().items() if k != "gross_changes"}
    assert isinstance(RankStream.load(state, stream.columns, stream.board).gross_changes, GrossChanges)


def warming(fault: Change) -> Change:
    """A warm-up in which one input jumps about for so long that a learned sign of it is open all the time."""

    def change(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
        at = step - 100
        scalars["lr"] = 1e-5 * (at + 1)
        for name, stats in tensors.items():
            if not name.endswith("weight"):
                stats["amax"] *= 1.05 ** min(at, 30)
        if at >= 15:
            tensors["blocks.1.mlp.fc2/input"]["amax"] *= 1.5 ** min(at - 14, 6)
        fault(step, tensors, scalars)

    return change


def outlier(at: int, tensor: str, times: float) -> Change:
    def change(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
        if step == 100 + at:
            tensors[tensor]["rms"] = tensors[tensor]["amax"] / 4.0
            tensors[tensor]["amax"] *= times

    return change


def larger(at: int, tensor: str, times: float) -> Change:
    def change(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
        if step >= 100 + at:
            tensors[tensor]["amax"] *= times

    return change


def causes(run: Run) -> Sequence[tuple[str, int, str | None]]:
    verdict = diagnose(Case("", run.info(), run.rows()))
    return [(f["cause"], f["onset_step"], f["tensor"]) for f in alarms(verdict)]


@pytest.mark.parametrize("at", [4, 18, 40])
@pytest.mark.parametrize(("tensor", "times"), [(TARGET, 1e5), (GRAD, 1e9)])
def test_an_early_outlier_is_named_with_its_step_and_tensor(at: int, tensor: str, times: float) -> None:
    for change in (outlier(at, tensor, times), warming(outlier(at, tensor, times))):
        got = causes(Run(before=change, steps=70))
        assert ("amax_history_poisoning", 100 + at, tensor) in got, got


@pytest.mark.parametrize("at", [4, 18, 40])
def test_an_early_stale_scale_is_named_with_its_step_and_tensor(at: int) -> None:
    for change in (larger(at, TARGET, 64.0), warming(larger(at, TARGET, 64.0))):
        got = causes(Run(before=change, steps=70))
        assert ("stale_scale_saturation", 100 + at, TARGET) in got, got
