"""What the server answers, as objects. ``body`` of each is the whole answer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_SPELLED = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def number(value: object) -> float | None:
    """A number of an answer: those that are not finite come as strings, null is missing."""
    if isinstance(value, str):
        return _SPELLED.get(value)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


@dataclass(frozen=True)
class Run:
    """A run. status: running, stalled, finished, failed or crashed.  health: healthy, watch, warning or
    critical.  warming_up: it goes on and is too young to be called healthy.
    """

    run_id: str
    name: str
    project: str
    status: str
    health: str
    summary: str | None
    first_step: int | None
    last_step: int | None
    last_loss: float | None
    firing_alerts: int
    warming_up: bool
    body: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Run:
        plain = ("run_id", "name", "project", "status", "health", "summary", "first_step", "last_step")
        return cls(
            **{name: body[name] for name in plain},
            last_loss=number(body.get("last_loss")),
            firing_alerts=int(body.get("firing_alerts", 0)),
            warming_up=bool(body.get("warming_up", False)),
            body=body,
        )


@dataclass(frozen=True)
class Alert:
    """An alert. state: firing, acknowledged, resolved, recovered, silenced."""

    id: str
    run_id: str
    project: str
    state: str
    severity: str
    family: str
    cause: str
    summary: str
    onset_step: int
    first_seen: str
    body: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Alert:
        names = [name for name in cls.__dataclass_fields__ if name != "body"]
        return cls(**{name: body[name] for name in names}, body=body)


@dataclass(frozen=True)
class Series:
    """Bins of steps as lists of one length. min, max, mean, last: None where a bin has no finite value.

    count: values in a bin, of which nan and inf are not finite.
    """

    step: list[int]
    min: list[float | None]
    max: list[float | None]
    mean: list[float | None]
    last: list[float | None]
    count: list[int]
    nan: list[int]
    inf: list[int]

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Series:
        columns: dict[str, Any] = {name: list(body[name]) for name in ("step", "count", "nan", "inf")}
        for name in ("min", "max", "mean", "last"):
            columns[name] = [number(value) for value in body[name]]
        return cls(**columns)
