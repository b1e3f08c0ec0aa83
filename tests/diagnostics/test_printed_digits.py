"""Logs that print few digits: a healthy run stays healthy, and a wrong scale is still seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from floatscope.protocol.json_rows import batch_from_rows
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.detectors.printed_digits import MOST_DECIMALS, MOST_DIGITS, PrintedDigits
from floatscope_diagnostics.engine import Engine
from tests.diagnostics.synthetic import Run, Tensors


def decimals(count: int) -> Callable[[float], float]:
    return lambda x: round(x, count)


def digits(count: int) -> Callable[[float], float]:
    return lambda x: float(f"{x:.{count}g}")


def printed(run: Run, rounded: Callable[[float], float]) -> list[dict[str, Any]]:
    rows = run.rows()
    for row in rows:
        for stats in row["tensors"].values():
            stats.update({name: rounded(value) for name, value in stats.items()})
    return rows


def verdict(run: Run, rounded: Callable[[float], float]) -> dict[str, Any]:
    engine = Engine(RunInfo.from_json(run.info()))
    engine.feed(batch_from_rows(printed(run, rounded)))
    return engine.verdict().to_json()


def small_gradients(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """From 20 printed steps of 0.0001 down to none."""
    for name, stats in tensors.items():
        if name.endswith("grad_output"):
            stats["amax"] *= 0.0004


def too_high(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step >= 130:
        tensors["blocks.1.attn.qkv/input"]["scale"] *= 1.3


@pytest.mark.parametrize("rounded", [digits(3), digits(4), decimals(3), decimals(4)])
@pytest.mark.parametrize("before", [None, small_gradients])
def test_rounding_is_no_wrong_scale(rounded: Callable[[float], float], before: Any) -> None:
    found = verdict(Run(steps=120, before=before), rounded)
    assert not [f for f in found["findings"] if f["severity"] != "info"], found["summary"]


@pytest.mark.parametrize("rounded", [digits(3), decimals(3)])
def test_a_scale_wrong_by_more_than_the_rounding_is_found(rounded: Callable[[float], float]) -> None:
    found = verdict(Run(after=too_high), rounded)
    assert found["findings"][0]["cause"] == "scale_state_fault"
    assert found["findings"][0]["onset_step"] == 130


def test_full_precision_shows_in_the_first_rows() -> None:
    draw = np.random.default_rng(1).lognormal(0.0, 2.0, 16).astype(np.float32).astype(np.float64)
    seen = PrintedDigits()
    seen.learn(draw)
    assert (seen.decimals, seen.digits) == (MOST_DECIMALS + 1, MOST_DIGITS + 1)
    assert not seen.step(draw).any()
