"""The limits of a go / no-go decision as an address gives them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from floatscope_diagnostics.compare.limits import BadLimits, Limits, with_presets

NUMBERS: Mapping[str, str] = {
    "margin": "margin_nats",
    "min_speedup": "min_speedup",
    "min_saving": "min_saving_pct",
    "price_ratio": "price_ratio",
    "planned_steps": "planned_steps",
}
"""Name in the address -> field of Limits."""
PRESET = "preset"
WHOLE = ("planned_steps",)
LEAST_MARGIN_NATS, MOST_MARGIN_NATS = 1e-9, 100.0
"""The decision's: no training is told apart to a billionth of a nat, and none is 100 nats off. A comparison
takes any margin from 0 on."""
MAX_TEXT = 40


@dataclass(frozen=True)
class AskedLimits:
    """limits: to decide by.  margin: nats as asked, for the comparison; None for its own.  given: name in the
    address -> text, of what is used.  bad: (name, text, what was expected) of what cannot be used.
    """

    limits: Limits
    margin: float | None = None
    given: Mapping[str, str] = field(default_factory=dict)
    bad: tuple[tuple[str, str, str], ...] = ()


def asked_limits(params: Mapping[str, str]) -> AskedLimits:
    """Takes what can be used; never raises. What cannot is in ``bad``, first the first."""
    bad: list[tuple[str, str, str]] = []
    numbers: dict[str, float | int] = {}
    given: dict[str, str] = {}
    for name, of_limits in NUMBERS.items():
        text = params.get(name, "").strip()
        if not text:
            continue
        try:
            value = _number(name, text)
            Limits(**_held(of_limits, value))
        except (ValueError, OverflowError) as error:
            bad.append((name, text[:MAX_TEXT], _expected(error)))
            continue
        numbers[name], given[name] = value, text
    preset = params.get(PRESET, "").strip()
    limits = with_presets((), _all(numbers))
    if preset:
        try:
            limits = with_presets([part for part in preset.split(",") if part], _all(numbers))
            given[PRESET] = preset
        except BadLimits as error:
            bad.append((PRESET, preset[:MAX_TEXT], _expected(error)))
    margin = numbers.get("margin")
    return AskedLimits(limits, None if margin is None else float(margin), given, tuple(bad))


def _expected(error: Exception) -> str:
    """What the message says would have been right."""
    wanted = str(error).partition("expected ")[2]
    return wanted.rpartition(", got")[0] or wanted or "a number"


def _number(name: str, text: str) -> float | int:
    if len(text) > MAX_TEXT:
        raise ValueError("expected a number")
    if name in WHOLE:
        return int(text)
    value = float(text)
    if not math.isfinite(value) or (name == "margin" and not 0.0 <= value <= 1e6):
        raise ValueError("expected a number from 0 to 1000000")
    return value


def _all(numbers: Mapping[str, float | int]) -> dict[str, Any]:
    held: dict[str, Any] = {}
    for name, value in numbers.items():
        held |= _held(NUMBERS[name], value)
    return held


def _held(of_limits: str, value: float | int) -> dict[str, Any]:
    if of_limits == "margin_nats":
        value = min(max(value, LEAST_MARGIN_NATS), MOST_MARGIN_NATS)
    return {of_limits: value}
