"""Bands, bets and slopes: what they promise, on series whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope_diagnostics.compare.betting import Bet, log_start_weight
from floatscope_diagnostics.compare.bootstrap import mean_band
from floatscope_diagnostics.compare.noise import noise_of, student_quantile
from floatscope_diagnostics.compare.separation import separations
from floatscope_diagnostics.compare.shape import shape_of
from floatscope_diagnostics.compare.stability import stability_gate
from tests.diagnostics.compare.logs import autoregressive
from tests.diagnostics.compare.pairs import pair

VALUES = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize(("phi", "low"), [(0.0, 0.9), (0.7, 0.88)])
def test_the_band_covers_the_mean_as_often_as_it_says(phi: float, low: float) -> None:
    """95 % nominal, 100 series: 0.88 and 0.9 are three standard deviations below."""
    hits = 0
    for seed in range(100):
        band = mean_band(autoregressive(200, phi, seed), confidence=0.95)
        hits += band.low <= 0.0 <= band.high
    assert hits >= 100 * low


def test_the_effective_sample_size_follows_the_autocorrelation() -> None:
    series = autoregressive(4000, 0.9, 5)
    noise = noise_of(series)
    assert noise.phi == pytest.approx(0.9, abs=0.05)
    assert 100 < noise.n_eff < 450  # 4,000 (1 - phi) / (1 + phi) = 210
    assert noise_of(np.random.default_rng(1).normal(size=4000)).n_eff > 3000


@pytest.mark.parametrize(
    ("df", "quantile"), [(1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (10, 2.228), (30, 2.042)]
)
def test_quantiles_of_students_t(df: int, quantile: float) -> None:
    assert student_quantile(0.975, df) == pytest.approx(quantile, rel=0.01)


def test_the_shares_of_a_bet_sum_to_one() -> None:
    total = sum(math.exp(log_start_weight(k)) for k in range(200_000))
    assert 0.9 < total < 1.0


def test_a_bet_against_a_fair_coin_does_not_win() -> None:
    """Ville: P(ever 20) <= 0.05. 200 series of 400 blocks, looked at after each."""
    won = 0
    for seed in range(200):
        draw = np.random.default_rng(seed)
        bet, top = Bet(), -math.inf
        for value in draw.standard_t(2, size=400).tolist():
            bet.add(value, scale=1.0)
            top = max(top, bet.log_capital())
        won += top >= math.log(20.0)
    assert won <= 20


def test_a_bet_wins_on_a_lasting_difference_and_says_where_it_began() -> None:
    bet = Bet()
    values = np.random.default_rng(2).normal(0.0, 1.0, 300)
    values[100:] += 1.5
    for value in values.tolist():
        bet.add(value, scale=1.0)
        if bet.log_capital() > math.log(100.0):
            break
    assert 110 < bet.blocks < 160
    assert 95 <= bet.beginning() <= 105


def test_a_saved_bet_goes_on_as_if_it_had_not_stopped() -> None:
    values = np.random.default_rng(4).normal(0.3, 1.0, 80).tolist()
    whole, first = Bet(), Bet()
    for value in values:
        whole.add(value, scale=1.0)
    for value in values[:33]:
        first.add(value, scale=1.0)
    second = Bet.load(first.state())
    for value in values[33:]:
        second.add(value, scale=1.0)
    assert second == whole


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_noise_is_seldom_a_separation(phi: float) -> None:
    false = sum(bool(separations(autoregressive(600, phi, seed), alpha=0.05)) for seed in range(60))
    assert false <= 9  # three standard deviations above 3


def test_the_first_step_of_a_separation() -> None:
    gap = np.random.default_rng(7).normal(0.0, 0.01, 1000)
    gap[400:] += 0.03
    found = separations(gap, alpha=0.05)
    assert [s.sign for s in found] == [1]
    assert 396 <= found[0].onset <= 404
    assert 400 < found[0].proven < 480
    assert not separations(gap, alpha=0.05, margin=0.04)
    assert [s.sign for s in separations(-gap, alpha=0.05, margin=0.02)] == [-1]


def test_offset_and_slope() -> None:
    step = np.arange(500)
    noise = np.random.default_rng(8).normal(0.0, 0.01, 500)
    assert shape_of(step, 0.05 + noise, confidence=0.95, apart=True).kind == "constant"
    widening = shape_of(step, 0.0002 * step + noise, confidence=0.95, apart=True)
    assert widening.kind == "widening"
    assert widening.low is not None
    assert widening.high is not None
    assert widening.low < 0.0002 * 499 < widening.high
    assert shape_of(step, 0.1 - 0.0002 * step + noise, confidence=0.95, apart=True).kind == "closing"
    assert shape_of(step[:30], 0.004 + noise[:30], confidence=0.95, apart=True).kind == "cannot_tell_yet"
    assert shape_of(step, noise, confidence=0.95, apart=False).kind == "none"


@settings(max_examples=150, deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=60))
def test_any_finite_series_gets_a_band_that_holds_its_mean(values: list[float]) -> None:
    series = np.array(values) / 4.0
    band = mean_band(series, confidence=0.95)
    assert band.low <= band.mean <= band.high
    assert not math.isnan(band.low)
    separations(series, alpha=0.05)
    shape_of(np.arange(len(series)), series, confidence=0.95, apart=True)


def test_spikes_that_were_not_counted_are_no_pass() -> None:
    short = stability_gate(pair(n=100, grad_norm=[1.0] * 100))
    assert short.state == "not_checked"
    assert "too few steps to count loss spikes" in short.sentence.lower()
    assert stability_gate(pair(n=300, grad_norm=[1.0] * 300)).state == "pass"
