"""What the shape of a whole curve says, and what it does not say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from floatscope.protocol.json_rows import batch_from_rows
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.engine import Engine
from tests.diagnostics.curve_rows import falling

Float64 = NDArray[np.floating[Any]]
T = np.arange(400.0)
LOSS = falling()


def verdict(first: int = 0, every: int = 1, **columns: Float64 | Sequence[float | None]) -> dict[str, Any]:
    """Of rows with these columns; None is not logged."""
    rows: list[dict[str, Any]] = []
    for t in range(max(len(c) for c in columns.values())):
        row = {name: float(v) for name, c in columns.items() if t < len(c) and (v := c[t]) is not None}
        rows.append({"step": first + t * every, **row})
    engine = Engine(RunInfo())
    engine.feed(batch_from_rows(rows, strict=False))
    return engine.verdict().to_json()


def told(document: dict[str, Any], *, loud: bool = True) -> list[tuple[str, int]]:
    return [
        (f["symptom"], f["onset_step"]) for f in document["findings"] if f["severity"] != "info" or not loud
    ]


def stretch(first: int, last: int) -> Float64:
    return ((first <= T) & (last > T)).astype(float)


SPIKE = LOSS * (1 + 0.8 * stretch(200, 212))
ONE_BATCH = LOSS * (1 + 3.0 * stretch(200, 201))
LEAP = LOSS * (1 + 1.5 * stretch(250, 400))
STEP = LOSS * (1 + 0.6 * stretch(250, 400))
DOMAIN = LOSS * (1 + 0.12 * stretch(250, 400))


@pytest.mark.parametrize(
    ("loss", "symptom", "onset"),
    [
        (SPIKE, "spike_recovered", 200),
        (LEAP, "divergence", 250),
        (STEP, "spike_not_recovered", 250),
        (np.where(T < 300, LOSS, np.nan), "nonfinite", 300),
        (np.where(T < 300, LOSS, 0.0), "nonfinite", 300),
        (7.6 + (LOSS - falling(noise=0.0)), "plateau", 0),
    ],
)
def test_each_symptom_in_any_unit(loss: Float64, symptom: str, onset: int) -> None:
    assert told(verdict(loss=loss)) == [(symptom, onset)]
    if symptom != "plateau":  # whose level has a meaning
        assert told(verdict(loss=loss * 0.01)) == told(verdict(loss=loss * 300)) == [(symptom, onset)]


@pytest.mark.parametrize(
    "loss",
    [ONE_BATCH, DOMAIN, LOSS, falling(noise=0.4), np.maximum(LOSS - 4.0, -1.4) + 0.01 * (T % 3), LOSS[:5]],
)
def test_a_batch_a_domain_noise_and_a_likelihood_below_zero_are_no_alarm(loss: Float64) -> None:
    assert told(verdict(loss=loss)) == []


def test_one_batch_is_noted_nowhere_as_a_rise() -> None:
    assert told(verdict(loss=ONE_BATCH), loud=False) == []


def test_a_schedule_that_restarts_is_no_divergence() -> None:
    rate = 1e-3 * (0.51 + 0.49 * np.cos(np.pi * (T % 100) / 100))
    assert told(verdict(loss=LOSS * (1 + 0.4 * rate / 1e-3), lr=rate)) == []


def test_a_rate_that_jumps_is_named() -> None:
    rate = np.where(T < 250, 3e-4, 9e-3)
    found = verdict(loss=LEAP, lr=rate)["findings"][0]
    assert (found["cause"], found["symptom"], found["onset_step"]) == ("lr_divergence", "divergence", 250)


def test_two_points_that_leave_no_doubt() -> None:
    assert told(verdict(loss=[2.28, 11.05], first=1)) == [("divergence", 2)]
    assert told(verdict(loss=[2.28, 2.61], first=1)) == []


def test_skipped_steps_at_the_start_print_zero() -> None:
    assert told(verdict(loss=np.where(T < 6, 0.0, LOSS), loss_scale=2.0 ** np.clip(22 - T, 16, 22))) == []


def test_a_loss_that_converges_to_almost_nothing_is_sound() -> None:
    assert told(verdict(loss=np.round(3.0 * 0.97**T, 4), grad_norm=0.97**T)) == []


def test_a_policy_loss_may_rise() -> None:
    assert told(verdict(loss=0.0001 + 0.00005 * T, reward=0.01 * T)) == []


def test_a_loss_left_out_for_good_was_nan() -> None:
    loss = [float(v) if t < 300 else None for t, v in enumerate(LOSS)]
    assert told(verdict(loss=loss, lr=np.full(400, 3e-4))) == [("nonfinite", 300)]


def test_another_loss_that_is_never_finite_again_is_named() -> None:
    found = verdict(loss=LOSS, box_loss=np.where(T < 300, LOSS, np.nan))["findings"]
    assert [(f["symptom"], f["onset_step"], f["evidence"][0]["signal"]) for f in found] == [
        ("nonfinite", 300, "box_loss")
    ]
    assert told(verdict(loss=LOSS, accuracy=np.where(T < 300, 0.5, np.nan))) == []


@pytest.mark.parametrize("held", [[1.3, 1.1, 1.05, 1.12, 1.2, 1.3], [1.1, 1.2, 1.5]])
def test_overfitting_over_few_evaluations(held: list[float]) -> None:
    train = np.linspace(1.2, 0.3, len(held))
    best = int(np.argmin(held))
    assert told(verdict(loss=train, eval_loss=held, every=500)) == [("overfit", 500 * best)]


def test_a_held_out_loss_that_was_never_good() -> None:
    held, train = [6.8, 8.6, 5.9, 6.7, 6.4, 6.5], [0.4, 0.2, 0.1, 0.05, 0.03, 0.01]
    assert told(verdict(loss=train, eval_loss=held)) == [("overfit", 0)]


def test_a_scale_that_falls_at_every_line_of_the_log() -> None:
    assert told(verdict(loss_scale=[64.0, 32, 16, 8, 4, 2], first=378)) == [("loss_scale_collapse", 379)]
    tiny = [2.0**-1030 / 2**k for k in range(12)]
    assert told(verdict(loss_scale=tiny)) == [("loss_scale_collapse", 1)]


def test_guessing_is_a_plateau_however_short() -> None:
    assert told(verdict(loss=np.log(2) + 1e-4 * np.cos(np.arange(12.0)))) == [("plateau", 0)]
    assert told(verdict(loss=1.2 + 0.05 * np.cos(np.arange(12.0)))) == []


def test_what_a_short_curve_cannot_tell_is_said() -> None:
    missing = {(n["rule"], n["needs"][0]): n["why"] for n in verdict(loss=[3.0, 2.9, 2.8])["not_checked"]}
    assert missing["FS904", "loss at 24 points"] == "only 3 finite points: a slow drift is not seen"
    late = {n["rule"]: n["why"] for n in verdict(loss=LOSS, first=80_000)["not_checked"]}
    assert late["FS427"].startswith("the log begins at step 80,000")


def test_a_rise_keeps_its_identity_as_it_grows() -> None:
    loss = LOSS * (1 + 0.02 * np.clip(T - 200, 0, None))
    names = {verdict(loss=loss[:n])["findings"][0]["id"] for n in (240, 270, 300, 350, 400)}
    assert len(names) == 1


def test_a_short_log_that_rises_throughout() -> None:
    up = [10.38, 10.42, 10.47, 10.53, 10.52, 10.6, 10.66, 10.7, 10.76, 10.81, 10.9, 11.0]
    assert told(verdict(loss=up)) == [("drift_up", 0)]
    assert not told(verdict(first=5_000, loss=up)), "a window of a longer run may show anything"
    assert not told(verdict(loss=up[:6]))


def test_a_short_log_that_loses_most_of_its_progress() -> None:
    dip = [10.5, 10.6, 10.1, 10.2, 9.2, 8.2, 7.7, 7.8, 8.0, 9.7, 9.95]
    assert told(verdict(first=12_900, every=50, loss=dip)) == [("spike_not_recovered", 13_350)]
    assert not told(verdict(first=12_900, every=50, loss=[*dip[:9], 8.4, 8.1]))


def test_a_hump_of_noise_in_a_short_log_is_no_divergence() -> None:
    hump = [0.43, 0.74, 0.71, 0.41, 0.43, 0.47, 0.59, 0.82, 0.89, 1.1, 1.7, 1.8, 1.25, 1.8, 0.94]
    after = [1.2, 1.3, 0.94, 0.53, 0.68, 1.08, 0.64, 1.03, 0.75, 0.74, 0.6, 1.1, 0.92, 5.1, 0.86]
    assert not told(verdict(first=12_972, loss=hump + after))


def test_a_spike_between_sparse_points_of_a_long_log() -> None:
    loss = falling(3_000)
    loss[[1_500, 1_501]] *= (1.6, 2.1)
    assert [name for name, _ in told(verdict(every=5, loss=loss))] == ["spike_recovered"]
    assert not told(verdict(loss=loss)), "two batches of a log of every step"


def test_an_average_of_exactly_zero_needs_no_second() -> None:
    assert told(verdict(first=4_440, every=10, loss=[2.7, 0.0], lr=[3e-5, 3e-5])) == [("nonfinite", 4_450)]
    assert not told(verdict(loss=[2.7, 0.0], lr=[3e-5, 3e-5]))


def test_a_column_that_empties_for_good_is_named_where_it_was_always_filled() -> None:
    filled = np.where(T < 300, 0.5, np.nan)
    assert told(verdict(other=filled)) == [("nonfinite", 300)]
    assert not told(verdict(other=np.where((T < 300) & (T % 50 != 0), 0.5, np.nan)))
