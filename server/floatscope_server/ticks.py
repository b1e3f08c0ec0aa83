"""What the horizontal axis of a chart over steps says: at which steps a round number of tokens was reached,
or a round time of the reader's clock. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from itertools import accumulate

from babel.dates import format_skeleton

SIZES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"), (1.0, ""))
SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200)
DAYS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
DAY_S = 86_400
MINUTE_S = 60
APART = 0.04
"""Ticks nearer than this share of the axis would touch: the later one is left out."""
MOST = 60


@dataclass(frozen=True)
class Tick:
    """A mark at a step, and what it says. A line break is "<br>"."""

    step: float
    text: str


def round_steps(span: float, count: int) -> float:
    """The least of 1, 2, 5 times a power of ten that makes at most ``count`` parts of ``span``."""
    least = span / max(1, count)
    if least <= 0 or not math.isfinite(least):
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= least * (1 - 1e-9))


def amount_ticks(steps: Sequence[float], totals: Sequence[float], count: int) -> list[Tick]:
    """Ticks at round totals. totals: what was reached before each of ``steps``, never falling."""
    if len(steps) < 2 or not 0 < totals[-1] - totals[0] < math.inf:
        return []
    every = round_steps(totals[-1] - totals[0], count)
    first = math.ceil(totals[0] / every - 1e-9)
    last = min(math.floor(totals[-1] / every + 1e-9), first + MOST)
    found = [
        Tick(_place(n * every, totals, steps), amount_text(n * every, every)) for n in range(first, last + 1)
    ]
    return _apart(found, steps)


def amount_text(value: float, every: float) -> str:
    """A number with its power in short, with the digits that tell it from its neighbours ``every`` away."""
    size, unit = next((s, u) for s, u in SIZES if abs(value) >= s or s == 1.0)
    decimals = max(0, -math.floor(math.log10(every / size) + 1e-9)) if every > 0 else 0
    text = f"{value / size:,.{min(decimals, 6)}f}"
    return f"{text}\u202f{unit}" if unit else text


def time_ticks(
    steps: Sequence[float], times: Sequence[float], zone: tzinfo, count: int, language: str
) -> list[Tick]:
    """Ticks at round times of the clocks of ``zone``. times: unix seconds at ``steps``."""
    if len(steps) < 2:
        return []
    never_back = list(accumulate(times, max))  # steps trained again after a resume are later
    begin, end = never_back[0], never_back[-1]
    if end <= begin:
        return []
    every = _interval((end - begin) / max(1, count))
    marks = [
        (moment, _place(moment.timestamp(), never_back, steps))
        for moment in _moments(begin, end, zone, every)
    ]
    kept = _apart([Tick(step, moment.isoformat()) for moment, step in marks], steps)
    found = []
    day = None
    for tick in kept:
        moment = datetime.fromisoformat(tick.text)
        found.append(Tick(tick.step, _time_text(moment, every, language, with_day=moment.date() != day)))
        day = moment.date()
    return found


def _interval(least_s: float) -> float:
    whole = next((s for s in SECONDS if s >= least_s), None)
    if whole is not None:
        return float(whole)
    days = next((d for d in DAYS if d * DAY_S >= least_s), DAYS[-1])
    return float(days * DAY_S)


def _moments(begin: float, end: float, zone: tzinfo, every_s: float) -> Iterator[datetime]:
    """Round times by the wall clock, so that they stay round over a change to summer time."""
    first = datetime.fromtimestamp(begin, zone)
    clock = first.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    whole = math.ceil((first.replace(tzinfo=None) - clock).total_seconds() / every_s)
    clock += timedelta(seconds=whole * every_s)
    for _ in range(MOST):
        moment = clock.replace(tzinfo=zone)
        if moment.timestamp() > end:
            return
        if moment.timestamp() >= begin:
            yield moment
        clock += timedelta(seconds=every_s)


def _time_text(moment: datetime, every_s: float, language: str, *, with_day: bool) -> str:
    day = str(format_skeleton("MMMd", moment, locale=language.replace("-", "_")))
    if every_s >= DAY_S:
        return day
    clock = f"{moment:%H:%M:%S}" if every_s < MINUTE_S else f"{moment:%H:%M}"
    return f"{clock}<br>{day}" if with_day else clock


def _place(value: float, values: Sequence[float], steps: Sequence[float]) -> float:
    """The step at which ``value`` is reached, linear between neighbours."""
    for index in range(1, len(values)):
        low, high = values[index - 1], values[index]
        if value <= high and high > low:
            share = min(1.0, max(0.0, (value - low) / (high - low)))
            return steps[index - 1] + share * (steps[index] - steps[index - 1])
    return steps[-1]


def _apart(ticks: Sequence[Tick], steps: Sequence[float]) -> list[Tick]:
    least = APART * (steps[-1] - steps[0])
    kept: list[Tick] = []
    for tick in ticks:
        if not kept or tick.step - kept[-1].step >= least:
            kept.append(tick)
    return kept
