"""Derived statistics: sat and headroom from what was sent, with missing, zero and infinite kept apart."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest

from floatscope.protocol.batch import Batch
from floatscope.protocol.json_rows import batch_from_rows
from floatscope_server.derived import derive, format_max, needs
from floatscope_server.glance import glance

TABLE = {"a/input": {"format": "e4m3"}, "b/grad_output": {"format": "e5m2"}, "c/input": {"format": "bf16"}}


def one(stats: Mapping[str, Mapping[str, float]]) -> Batch:
    return batch_from_rows([{"step": 0, "loss": math.nan, "tensors": stats}])


def values(batch: Batch, stat: str) -> list[float | None]:
    found, present = derive(batch, stat, TABLE)
    return [float(v) if p else None for v, p in zip(found[0], present[0], strict=True)]


def test_sat_and_headroom_by_format() -> None:
    batch = one(
        {
            "a/input": {"amax": 224.0, "scale": 4.0},
            "b/grad_output": {"amax": 57344.0, "scale": 0.25},
            "c/input": {"amax": 1.0, "scale": 1.0},
            "d/input": {"amax": 1.0, "scale": 1.0},
        }
    )
    assert values(batch, "sat") == [2.0, 0.25, None, None]
    assert values(batch, "headroom_log2") == [-1.0, 2.0, None, None]


def test_zero_has_no_headroom_and_infinite_has_none_left() -> None:
    batch = one({"a/input": {"amax": 0.0, "scale": 4.0}, "b/grad_output": {"amax": math.inf, "scale": 1.0}})
    assert values(batch, "sat") == [0.0, math.inf]
    assert values(batch, "headroom_log2") == [None, -math.inf]


def test_what_the_sender_says_wins_where_it_says_it() -> None:
    batch = one(
        {
            "a/input": {"amax": 448.0, "scale": 1.0, "sat": 3.0},
            "b/grad_output": {"amax": 57344.0, "scale": 0.5},
        }
    )
    assert values(batch, "sat") == [3.0, 0.5]
    assert values(batch, "headroom_log2") == [pytest.approx(-math.log2(3)), 1.0]
    alone = one({"a/input": {"sat": 0.5}})
    assert values(alone, "headroom_log2") == [1.0]


def test_what_cannot_be_had() -> None:
    assert values(one({"a/input": {"amax": 1.0}}), "sat") == [None]
    assert needs("sat", ("amax",)) == ()
    assert needs("headroom_log2", ("amax", "scale")) == ("amax", "scale")
    assert needs("rms", ("amax",)) == ()
    assert np.isnan(format_max(["c/input", "x"], TABLE)).all()


def test_a_glance_has_the_last_scalar_and_the_worst_of_all_tensors() -> None:
    batch = one(
        {
            "a/input": {"amax": 224.0, "scale": 4.0, "overflow_pct": 3.0, "nan_count": 2.0},
            "b/grad_output": {"amax": 1.0, "scale": 1.0, "overflow_pct": math.nan, "inf_count": 1.0},
        }
    )
    found = glance(batch, TABLE)
    assert math.isnan(found.pop("loss"))
    assert found == {"headroom_log2": -1.0, "overflow_pct": 3.0, "nonfinite": 3.0}
