"""The key numbers of a run's page: seven at most, each with its curve and a note on how it compares."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from floatscope_dashboards.facts import amount
from floatscope_dashboards.say import Say
from floatscope_dashboards.views import Kpi
from floatscope_dashboards.wording import signed_text
from floatscope_server.views.number_words import number_words
from floatscope_server.views.run_curves import Curve, Curves

MOST = 7
NOTABLE = 1.5
"""A number this many times its median before the onset is said to be so."""
Glances = Sequence[tuple[int, int, Mapping[str, float]]]
"""(first step, last step, name -> number) of batches, oldest first."""


@dataclass(frozen=True)
class _Seen:
    """What a key number is made of. first_broken: the first step with a loss or gradient norm not finite."""

    curves: Curves
    glances: Glances
    onset: int | None
    first_broken: int | None
    ranks: int
    say: Say


def kpis(
    curves: Curves,
    glances: Glances,
    *,
    onset: int | None,
    first_broken: int | None,
    ranks: int,
    say: Say,
) -> tuple[Kpi, ...]:
    """The seven that matter most of those there are data for."""
    seen = _Seen(curves, glances, onset, first_broken, ranks, say)
    found = [made for make in _ORDER if (made := make(seen)) is not None]
    return tuple(found[:MOST])


def _loss(seen: _Seen) -> Kpi | None:
    return _of_curve(seen, "loss", seen.say("Loss"), seen.say("nats"), change=True)


def _grad_norm(seen: _Seen) -> Kpi | None:
    return _of_curve(seen, "grad_norm", seen.say("Gradient norm"), "")


def _headroom(seen: _Seen) -> Kpi | None:
    note = seen.say("lowest of all tensors; lowest so far {value}")
    return _of_glances(seen, "headroom_log2", seen.say("Lowest headroom"), seen.say("binades"), note, min)


def _clipped(seen: _Seen) -> Kpi | None:
    note = seen.say("highest of all tensors; highest so far {value}")
    return _of_glances(seen, "overflow_pct", seen.say("Values clipped"), "%", note, max)


def _underflow(seen: _Seen) -> Kpi | None:
    note = seen.say("highest of all tensors; highest so far {value}")
    return _of_glances(seen, "underflow_pct", seen.say("Values rounded to 0"), "%", note, max)


def _nonfinite(seen: _Seen) -> Kpi | None:
    curves = [curve for name in ("loss", "grad_norm") if (curve := seen.curves.get(name)) is not None]
    if not curves:
        return None
    worst = max(curves, key=lambda curve: curve.broken)
    say = seen.say
    if not worst.broken:
        note = say("no NaN or Inf in loss or gradient norm")
    else:
        note = say("first at step {step}", step=say.step(seen.first_broken))
    broken = tuple(float(nan + inf) for nan, inf in zip(worst.nan, worst.inf, strict=True))
    return Kpi(say("Non-finite steps"), f"{worst.broken:,}", "", note, broken)


def _throughput(seen: _Seen) -> Kpi | None:
    tokens, seconds = seen.curves.get("tokens"), seen.curves.get("step_time_s")
    if tokens is None or seconds is None or tokens.step != seconds.step:
        return None
    speed = [
        t / s if s > 0 and math.isfinite(t) else math.nan
        for t, s in zip(tokens.mean, seconds.mean, strict=True)
    ]
    finite = [value for value in speed if math.isfinite(value)]
    if not finite:
        return None
    say = seen.say
    note = say("of one rank; ") if seen.ranks > 1 else ""
    note += _against(seen, tokens.step, speed, finite[-1]) or say("newest stretch of steps")
    return Kpi(say("Throughput"), amount(finite[-1]), say("tokens/s"), note, tuple(speed))


def _gpu(seen: _Seen) -> Kpi | None:
    curve = seen.curves.get("gpu_util_pct")
    if curve is None:
        return None
    finite = [value for value in curve.last if math.isfinite(value)]
    if not finite:
        return None
    say = seen.say
    lowest = min(value for value in curve.mean if math.isfinite(value))
    note = say("lowest mean of a stretch {value} %", value=number_words(lowest, decimals=0))
    return Kpi(say("GPU utilisation"), number_words(finite[-1], decimals=0), "%", note, curve.shown())


def _lr(seen: _Seen) -> Kpi | None:
    return _of_curve(seen, "lr", seen.say("Learning rate"), "", compared=False)


def _step_time(seen: _Seen) -> Kpi | None:
    return _of_curve(seen, "step_time_s", seen.say("Step time"), "s")


_ORDER: tuple[Callable[[_Seen], Kpi | None], ...] = (
    _loss, _grad_norm, _headroom, _clipped, _nonfinite, _throughput, _gpu, _underflow, _lr, _step_time,
)  # fmt: skip


def _of_curve(
    seen: _Seen, name: str, word: str, unit: str, *, change: bool = False, compared: bool = True
) -> Kpi | None:
    """change: the note is the difference to before the onset, not the ratio. compared: it has one."""
    curve = seen.curves.get(name)
    if curve is None:
        return None
    values = curve.shown()
    last = values[-1]
    note = ""
    if change:
        since = loss_change(curve, seen.onset)
        note = "" if since is None else seen.say("{change} since the onset", change=signed_text(since, 3))
    elif compared and math.isfinite(last):
        note = _against(seen, curve.step, curve.last, last)
    return Kpi(word, number_words(last), unit, note or seen.say("last step"), values)


def loss_change(curve: Curve, onset: int | None) -> float | None:
    """Mean of the newest bin minus the mean of the three bins before the onset, in the curve's unit; None
    without finite values on both sides.
    """
    if onset is None:
        return None
    before = [m for s, m in zip(curve.step, curve.mean, strict=True) if s + curve.width <= onset]
    before = [value for value in before if math.isfinite(value)][-3:]
    after = [m for s, m in zip(curve.step, curve.mean, strict=True) if s > onset and math.isfinite(m)]
    if not before or not after:
        return None
    return after[-1] - sum(before) / len(before)


def _against(seen: _Seen, steps: Sequence[int], values: Sequence[float], last: float) -> str:
    """How many times its median before the onset the last value is, if that is notable."""
    if seen.onset is None:
        return ""
    before = [v for s, v in zip(steps, values, strict=True) if s < seen.onset and math.isfinite(v)]
    median = statistics.median(before) if before else 0.0
    if median <= 0 or last <= 0:
        return ""
    times = last / median
    if 1 / NOTABLE < times < NOTABLE:
        return ""
    return seen.say(
        "{times}\u00d7 its median before the onset", times=f"{times:.2g}" if times < 10 else f"{times:,.0f}"
    )


def _of_glances(
    seen: _Seen, key: str, word: str, unit: str, note: str, worst: Callable[[Iterator[float]], float]
) -> Kpi | None:
    values = [glance.get(key) for _first, _last, glance in seen.glances]
    known = [value for value in values if value is not None]
    if not known:
        return None
    finite = [value for value in known if math.isfinite(value)]
    said = note.format(value=number_words(worst(iter(finite)), decimals=2)) if finite else ""
    return Kpi(word, number_words(known[-1], decimals=2), unit, said, tuple(values))
