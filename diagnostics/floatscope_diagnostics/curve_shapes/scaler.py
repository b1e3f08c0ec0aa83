"""The loss scale of FP16 training as a whole: down and down without growth.

Signal: ``curve_scale_falls``; extra: ``halvings``, ``scale`` at the end, ``top`` it came from,
``skipped_pct`` of the steps, ``notable``, ``harmless`` 1 where the loss went on falling.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from floatscope_diagnostics.curve_shapes.bins import Curve, Float64
from floatscope_diagnostics.curve_shapes.life import Life, sign
from floatscope_diagnostics.episodes import Symptom

FALLS = 5  # halvings without growth; a working scale loses one or two
FLOOR = 1.0  # below it a scale makes gradients smaller: it is no range problem any more
LOW = 64.0  # a search from 2^16 or more ends far above it
FROM = 1024.0  # a scale that once stood here and is at the floor now has collapsed
BEGUN_STEPS = 50  # later than that it is no search at the start
SKIPPED_PCT = 20.0
TINY = 1e-320
LAST_POINTS = 3
AT_BEST = 0.05  # of the loss, above its lowest value


def scale_falls(life: Life) -> Iterator[Symptom]:
    """One symptom if the scale has fallen and stays down at the end."""
    curve = life.curves.get("loss_scale")
    if curve is None or not (curve.finite > 0).any():
        return
    keep = np.flatnonzero(curve.finite > 0)
    high, last = curve.high[keep], curve.last[keep]
    end, top = float(last[-1]), float(high.max())
    if end < 0 or top <= 0 or int(curve.finite.sum()) < 2:
        return
    grew = np.flatnonzero(np.diff(last) > 0)
    since = int(grew[-1]) + 1 if len(grew) else 0
    begin = _first_fall(last, since)
    halvings = math.log2(max(float(high[since]), TINY) / max(end, TINY))
    skipped = _skipped_pct(life, curve)
    below = end < FLOOR <= top or (end < FLOOR and halvings >= 1)
    early = life.from_start and int(curve.last_step[-1]) <= BEGUN_STEPS
    always = bool(len(last) > 1 and curve.width == 1 and (np.diff(last) < 0).all())  # at each row of the log
    fell = halvings >= FALLS - always and end <= LOW and not (early and end >= FLOOR)
    floored = (
        end <= FLOOR and top >= FROM and (skipped is None or skipped >= SKIPPED_PCT or halvings >= FALLS)
    )
    if not (below or fell or floored):
        return
    at = keep[min(begin, len(keep) - 1)]
    yield sign(
        life,
        "scale_falls",
        onset=int(curve.first_step[at]),
        detected=int(curve.last_step[keep[_proven(last, begin, top, end)]]),
        value=end,
        peak=end,
        expected=top,
        series="loss_scale",
        rows=int(curve.finite[at:].sum()),
        extra={
            "halvings": halvings,
            "scale": end,
            "top": top,
            "notable": 1.0,
            "harmless": float(_trains_on(life)),
            **({} if skipped is None else {"skipped_pct": skipped}),
        },
    )


def _first_fall(last: Float64, since: int) -> int:
    falls = np.flatnonzero(np.diff(last[since:]) < 0)
    return since + (int(falls[0]) + 1 if len(falls) else 0)


def _proven(last: Float64, begin: int, top: float, end: float) -> int:
    """The first entry at which the fall was as far as it takes, or the last one."""
    limit = max(min(LOW, top / 2.0**FALLS), end)
    there = np.flatnonzero(last[begin:] <= limit)
    return begin + int(there[0]) if len(there) else len(last) - 1


def _skipped_pct(life: Life, scale: Curve) -> float | None:
    """Share of skipped steps by the running total, None where none is logged."""
    skipped = life.curves.get("skipped_steps")
    if skipped is None or not (skipped.finite > 0).any():
        return None
    steps = max(life.curves.last_step - life.curves.first_step, 1)
    return 100.0 * (float(skipped.high.max()) - float(skipped.low.min())) / steps


def _trains_on(life: Life) -> bool:
    """Whether the loss falls at the end and is at its best."""
    loss = life.loss
    if loss is None or life.ends_broken or len(loss) < LAST_POINTS:
        return False
    last = loss.y[-LAST_POINTS:]
    return float(last[-1]) < float(last[0]) and float(last[-1]) <= float(loss.y.min()) + AT_BEST
