"""Calibration measures, against values worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.diagnosis.calibration import (
    answers,
    brier,
    calibration_table,
    expected_calibration_error,
    reliability,
)
from benchmarks.diagnosis.outcome import Judged

RUN = Judged(
    run="r", case="c", cause="stall", split="tune", held_back=False, recipe="bf16", flavour="plain",
    healthy_steps=0, resampled_steps=0, false_alarms=(), predicted="stall", family="hardware", cause_ok=True,
    family_ok=True,
)  # fmt: skip
PAIRS = [(0.9, True), (0.9, False), (0.55, True), (1.0, True)]


def test_an_answer_on_an_edge_belongs_to_the_bin_above() -> None:
    assert [(b.low, b.high, b.count, b.right) for b in reliability(PAIRS)] == [
        (0.5, 0.6, 1, 1),
        (0.9, 0.95, 2, 1),
        (0.95, 1.0, 1, 1),
    ]


def test_brier_and_ece_by_hand() -> None:
    assert brier(PAIRS) == pytest.approx((0.01 + 0.81 + 0.2025 + 0.0) / 4)
    assert expected_calibration_error(PAIRS) == pytest.approx((0.45 + 0.8 + 0.0) / 4)


def test_silence_is_no_answer() -> None:
    assert answers([RUN, replace(RUN, confidence=0.8)]) == [(0.8, True)]
    assert brier([]) is None
    assert expected_calibration_error([]) is None


def test_the_table_is_printed_per_family() -> None:
    text = "\n".join(calibration_table([replace(RUN, confidence=0.8), RUN]))
    assert "0.80 to 0.90     0.80      1   100.0 %" in text
    assert "hardware" in text
