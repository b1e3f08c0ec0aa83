"""The levels that an advice works with, read from ``limits.json`` (each value with its source there)."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from functools import cache
from importlib.resources import files
from typing import Any

from floatscope_diagnostics.advisor.advice import Limits


class BadLimit(ValueError):
    """A limit that cannot be one; the message names it and what is expected."""


def default_limits() -> Limits:
    """The limits that were calibrated on the runs of ``benchmarks/advisor``."""
    return Limits(**{name: float(row["value"]) for name, row in _table()["limits"].items()})


def limits_with(given: dict[str, float]) -> Limits:
    """The default limits with some changed. Raises BadLimit for an unknown name, or a value that is not a
    finite number from 0 (in %, at most 100).
    """
    known = {field.name for field in fields(Limits)}
    for name, value in given.items():
        if name not in known:
            raise BadLimit(f"there is no limit {name!r}; the limits are {', '.join(sorted(known))}")
        if not 0 <= value < math.inf or (name.endswith("_pct") and value > 100):
            most = "100" if name.endswith("_pct") else "any finite number"
            raise BadLimit(f"{name}: expected a number from 0 to {most}, got {value:g}")
    return replace(default_limits(), **given)


def ideal_sqnr_db(format_name: str) -> float | None:
    """What a format reaches on values that suit it, dB; None for a format without a scale."""
    row = _table()["ideal_sqnr_db"].get(format_name)
    return None if row is None else float(row["value"])


def candidate(name: str) -> float:
    """What a scaling must reach to be chosen: "underflow_pct" or "sqnr_within_db"."""
    return float(_table()["candidate"][name]["value"])


def free_headroom_bits(format_name: str) -> float:
    """Headroom above amax that costs the values of an "e4m3" or "e5m2" tensor nothing, bits."""
    return float(_table()["free_headroom_bits"][format_name]["value"])


def clipped_bits() -> float:
    """How far above the format's largest value amax * scale must lie to prove a wrong scale, bits."""
    return float(_table()["clipped_bits"]["value"])


def budget(name: str) -> float:
    """ "gap_closed_pct" or "everywhere_share"."""
    return float(_table()["budget"][name]["value"])


def gap_closed_error_pct(gap_nats: float, chance_nats: float | None = None) -> tuple[float, float]:
    """What a predicted share of a gap was off by in the benchmark, lowest and highest, in points; and by how
    much of this gap two runs without a fault differ by chance. chance_nats: that, where twins of the
    reference tell it; else what the benchmark's restless runs differ by.
    """
    table = _table()
    known = float(table["run_to_run_nats"]["value"]) if chance_nats is None else chance_nats
    chance = 100.0 * known / gap_nats
    row = table["gap_closed_error_pct"]
    return float(row["low"]["value"]) - chance, float(row["high"]["value"]) + chance


@cache
def _table() -> dict[str, Any]:
    text = files("floatscope_diagnostics.advisor").joinpath("limits.json").read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table
