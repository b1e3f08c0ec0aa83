"""The limits of the decision: what loss difference is accepted and what speed or saving is asked for.

Presets are data (``presets.json``), each with its source; what is given by hand wins over them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import resources
from typing import Any

DEFAULT_NATS = 0.01
DEFAULT_PCT = 0.25
"""Of the baseline's loss. The margin is the smaller of the two: marin and Megatron accept 0.01 nats,
DeepSeek-V3 reports a relative loss error below 0.25 %."""
EVAL_POINTS = 1.0
"""Points of accuracy that a downstream task may lose."""


class BadLimits(ValueError):
    """Limits that cannot be used; the message says which and why."""


@dataclass(frozen=True)
class Preset:
    """A named set of limits. sets: fields of Limits."""

    name: str
    sets: Mapping[str, float]
    says: str
    source: str
    default: bool = False


@dataclass(frozen=True)
class Limits:
    """What the decision is held against; None: not asked for.

    margin_nats, margin_pct (of the baseline's loss): the loss difference that is accepted, the smaller of
    those given; with neither min(0.01 nats, 0.25 %).  min_speedup: throughput of the run over the baseline's,
    at least.  min_saving_pct: of cost per token.  min_net_saving_pct: of cost at equal loss.  price_ratio:
    price of an hour of the run's GPUs over an hour of the baseline's.  confidence: of the intervals that are
    shown.  planned_steps, planned_tokens: of the real training, to which a growing gap is carried on.
    """

    margin_nats: float | None = None
    margin_pct: float | None = None
    min_speedup: float | None = None
    min_saving_pct: float | None = None
    min_net_saving_pct: float | None = None
    price_ratio: float = 1.0
    eval_points: float = EVAL_POINTS
    planned_steps: int | None = None
    planned_tokens: int | None = None
    presets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, low, high in (
            ("margin_nats", 0.0, 100.0), ("margin_pct", 0.0, 100.0), ("min_speedup", 0.0, 100.0),
            ("eval_points", 0.0, 100.0), ("price_ratio", 0.0, 1000.0), ("planned_steps", 0, 2**53),
            ("planned_tokens", 0, 2**63),
        ):  # fmt: skip
            value = getattr(self, name)
            if value is None or (name == "margin_nats" and value == 0.0):
                continue
            if not (math.isfinite(value) and low < value <= high):
                raise BadLimits(f"{name}: expected a number above {low:g}, at most {high:g}, got {value}")
        for name in ("min_saving_pct", "min_net_saving_pct"):
            value = getattr(self, name)
            if value is not None and not -1000.0 <= value < 100.0:
                raise BadLimits(f"{name}: expected percent below 100, got {value}")

    def margin(self, baseline_loss: float) -> tuple[float, str]:
        """The margin in nats at a loss of the baseline, and where it is from. Raises BadLimits for a loss
        that gives none (percent of a loss that is not above 0).
        """
        nats, pct = self.margin_nats, self.margin_pct
        if nats is None and pct is None:
            nats, pct = DEFAULT_NATS, DEFAULT_PCT
            if not baseline_loss > 0.0:
                return nats, f"{nats:g} nats"
        choices = [] if nats is None else [(nats, f"{nats:g} nats")]
        if pct is not None:
            if not (math.isfinite(baseline_loss) and baseline_loss > 0.0):
                raise BadLimits(f"margin_pct: {pct:g} % of a loss of {baseline_loss:.3g} is no margin")
            choices.append((pct / 100.0 * baseline_loss, f"{pct:g} % of the baseline's loss"))
        return min(choices)

    @property
    def needs_speed(self) -> bool:
        return self.min_speedup is not None

    @property
    def needs_cost(self) -> bool:
        return self.min_saving_pct is not None or self.min_net_saving_pct is not None


@cache
def presets() -> Mapping[str, Preset]:
    """All presets by name, from the package's table."""
    text = resources.files(__package__).joinpath("presets.json").read_text(encoding="utf-8")
    return {row["name"]: Preset(**row) for row in json.loads(text)["presets"]}


def with_presets(names: Iterable[str], given: Mapping[str, Any]) -> Limits:
    """The limits of presets, with what is given (fields of Limits; None counts as not given) on top.

    Without a preset and without any limit of speed or cost the default preset's are added. Raises BadLimits
    for an unknown preset and for two that set the same.
    """
    table = presets()
    chosen: dict[str, Any] = {}
    by: dict[str, str] = {}
    names = tuple(dict.fromkeys(names))
    for name in names:
        if name not in table:
            raise BadLimits(f"preset: expected one of {', '.join(table)}, got {name!r}")
        for key, value in table[name].sets.items():
            if key in by:
                raise BadLimits(
                    f"preset: expected only one of {by[key]} and {name}, which both set {key}, got both"
                )
            by[key], chosen[key] = name, value
    chosen.update({key: value for key, value in given.items() if value is not None})
    unknown = set(chosen) - {f.name for f in fields(Limits)}
    if unknown:
        raise BadLimits(f"unknown limits: {', '.join(sorted(unknown))}")
    limits = Limits(**chosen, presets=names)
    if limits.needs_speed or limits.needs_cost:
        return limits
    usual = next(p for p in table.values() if p.default)
    sets: dict[str, Any] = dict(usual.sets)
    return replace(limits, presets=(*names, usual.name), **sets)
