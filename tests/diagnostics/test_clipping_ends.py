"""Clipping that is over is over: what an outlier leaves behind later is a report of its own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.diagnostics.case import Case, alarms, diagnose
from tests.diagnostics.synthetic import Run, Tensors

FAULT = 140
TARGET = "blocks.0.mlp.fc2/input"
CAUSE = "stale_scale_saturation"


def reports(
    *, jump: float, rows: int, outlier: float = 1.0, after: int = 0, steps: int = 110, history: int = 100
) -> list[dict[str, Any]]:
    """The alarms of a run whose amax is ``jump`` times as large for ``rows`` rows; ``after`` the first of
    them a single element is ``outlier`` times as large as the rest."""

    def before(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
        stats = tensors[TARGET]
        if FAULT <= step < FAULT + rows:
            stats["amax"] *= jump
        if step == FAULT + after:
            stats["rms"] = stats["amax"] / 4.0
            stats["amax"] *= outlier

    run = Run(steps=steps, history=history, before=before)
    return alarms(diagnose(Case("clipping", run.info(), run.rows())))


@pytest.mark.parametrize("after", [5, 12, 30])
def test_an_outlier_after_the_clipping_is_a_report_of_its_own(after: int) -> None:
    clip, poison = reports(jump=4.0, rows=2, outlier=64.0, after=after)
    assert (clip["cause"], clip["state"], clip["resolved_step"]) == (CAUSE, "recovered", FAULT + 1)
    assert (poison["cause"], poison["onset_step"]) == ("amax_history_poisoning", FAULT + after)
    assert poison["resolved_step"] > FAULT + after + 20  # the history holds it


def test_an_outlier_on_a_tensor_that_stays_large_is_no_growth() -> None:
    clip, poison = reports(jump=16.0, rows=1000, outlier=64.0, after=6, steps=60, history=8)
    assert (clip["cause"], clip["resolved_step"]) == (CAUSE, FAULT + 1)
    assert (poison["cause"], poison["onset_step"]) == ("amax_history_poisoning", FAULT + 6)


@pytest.mark.parametrize("outlier", [1.0, 256.0])
def test_one_jump_is_no_growth_however_far_it_goes(outlier: float) -> None:
    clip, *later = reports(jump=70.0, rows=1000, outlier=outlier, after=6, history=32)
    assert (clip["cause"], clip["resolved_step"]) == (CAUSE, FAULT + 1)
    assert [f["cause"] for f in later] == ["amax_history_poisoning"] * (outlier > 1.0)
