"""Scalars that break: NaN or Inf for good, a loss that becomes exactly 0, a loss that is no longer logged.

Signals: ``curve_nonfinite`` (any scalar, named in ``peak_tensor``; extra: ``total`` bad points, ``finite``
points before, ``lasting``), ``curve_loss_zero`` (extra: ``grad``: 0 missing, 1 exactly 0, 2 not finite, 3 a
number), ``curve_loss_gone``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from floatscope_diagnostics.curve_shapes.bins import NEVER, Curve
from floatscope_diagnostics.curve_shapes.life import Life, ends_nonfinite, sign
from floatscope_diagnostics.episodes import Symptom

LASTING_POINTS = 3  # without one finite in between, at the end of the log
SCALED_POINTS = 12  # of a gradient norm with loss scaling, whose search skips many steps in a row
ZERO_POINTS = 3
AVERAGED_STEPS = (
    5  # steps from one point to the next: each is the mean of as many, and one of exactly 0 enough
)
ZERO_BEFORE_SHARE = 0.01  # of the first level: a loss that had come so far down has converged
GONE_POINTS, GONE_BEFORE = 3, 3
COMPANY = 0.8  # share of its points in which a companion had a loss beside it
COMPANIONS = ("grad_norm", "lr", "loss_scale")
GRAD_MISSING, GRAD_ZERO, GRAD_BROKEN, GRAD_NUMBER = 0.0, 1.0, 2.0, 3.0


def broken(life: Life) -> Iterator[Symptom]:
    """All signals of this module."""
    for name, curve in life.curves.curves.items():
        if len(curve):
            yield from _nonfinite(life, name, curve)
    yield from _zero(life)
    yield from _gone(life)


def _nonfinite(life: Life, name: str, curve: Curve) -> Iterator[Symptom]:
    bad = curve.nan + curve.inf
    total = int(bad.sum())
    if total == 0:
        return
    finite = int(curve.finite.sum())
    lasting = ends_nonfinite(curve)
    begin, count = _since(curve) if lasting else (int(curve.bad_step.min()), total)
    if name == "grad_norm":
        needed = SCALED_POINTS if "loss_scale" in life.curves.curves else LASTING_POINTS
        if not lasting or count < needed:
            return
    elif name != "loss" and not lasting:
        return
    yield sign(
        life,
        "nonfinite",
        onset=begin,
        detected=begin,
        last=None if lasting else _last_bad(curve),
        value=math.nan if curve.nan.any() else math.inf,
        series=name,
        rows=count,
        extra={"total": float(total), "finite": float(finite), "lasting": float(lasting)},
    )


def _since(curve: Curve) -> tuple[int, int]:
    """Step of the first of the bad points at the end, and how many there are."""
    bad = curve.nan + curve.inf
    good = np.flatnonzero(curve.finite > 0)
    if not len(good):
        return int(curve.first_step[0]), int(bad.sum())
    last = int(good[-1])
    inside = int(bad[last])
    after = int(bad[last + 1 :].sum())
    if inside and curve.bad_step[last] != NEVER:
        return int(curve.bad_step[last]), inside + after
    return int(curve.first_step[last + 1]), after


def _last_bad(curve: Curve) -> int:
    return int(curve.last_step[np.flatnonzero(curve.nan + curve.inf)[-1]])


def _zero(life: Life) -> Iterator[Symptom]:
    """A loss that is exactly 0 from a step on: what loggers make of NaN, or a step without labels."""
    curve = life.curves.get("loss")
    if curve is None or curve.finite[-1] == 0 or curve.last[-1] != 0.0:
        return
    zero = (curve.low == 0.0) & (curve.high == 0.0)
    other = np.flatnonzero(~zero & (curve.finite > 0))
    begin = int(other[-1]) + 1 if len(other) else 0
    if begin >= len(curve):
        return
    points = int(curve.finite[begin:].sum())
    onset = int(curve.first_step[begin])
    grad = _gradient(life, onset)
    span = int(curve.last_step[-1]) - int(curve.first_step[0])
    averaged = begin > 0 and span >= AVERAGED_STEPS * max(int(curve.points.sum()) - 1, 1)
    if points < (1 if grad == GRAD_BROKEN or averaged else ZERO_POINTS):
        return
    if begin:
        before = float(np.median(np.abs(curve.total[:begin] / np.maximum(curve.finite[:begin], 1))[-5:]))
        first = float(np.median(np.abs(curve.first[:begin])[:5]))
        if not before > ZERO_BEFORE_SHARE * first:
            return  # it had converged
    elif grad in (GRAD_NUMBER, GRAD_MISSING):
        return  # a loss that begins at 0 and has gradients: a policy loss, or a column that is not filled
    yield sign(
        life,
        "loss_zero",
        onset=onset,
        detected=int(curve.last_step[min(begin + ZERO_POINTS - 1, len(curve) - 1)]),
        value=0.0,
        expected=before if begin else None,
        rows=points,
        extra={"grad": grad, "points": float(points)},
    )


def _gradient(life: Life, onset: int) -> float:
    """What the gradient norm does from a step on."""
    norm = life.curves.get("grad_norm")
    if norm is None:
        return GRAD_MISSING
    here = norm.first_step >= onset
    if not here.any():
        return GRAD_MISSING
    if int((norm.nan + norm.inf)[here].sum()) > int(norm.finite[here].sum()):
        return GRAD_BROKEN
    return GRAD_ZERO if float(norm.high[here].max()) == 0.0 else GRAD_NUMBER


def _gone(life: Life) -> Iterator[Symptom]:
    """Loggers leave out what is NaN: rows that used to have a loss beside their other numbers have none."""
    curve = life.curves.get("loss")
    if curve is None or int(curve.points.sum()) < GONE_BEFORE:
        return
    last_row = int(curve.last_row[-1])
    for name in COMPANIONS:
        other = life.curves.get(name)
        if other is None:
            continue
        after = int(other.points[other.first_row > last_row].sum())
        before = int(other.points[other.last_row <= last_row].sum())
        beside = min(before, int(curve.points.sum())) / max(before, int(curve.points.sum()), 1)
        if after >= GONE_POINTS and beside >= COMPANY:
            at = int(other.first_step[other.first_row > last_row][0])
            yield sign(life, "loss_gone", onset=at, detected=at, value=math.nan, rows=after)
            return
