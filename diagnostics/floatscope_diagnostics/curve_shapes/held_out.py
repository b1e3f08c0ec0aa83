"""The held-out loss against the training loss.

Signal: ``curve_overfit``; extra: ``factor`` of the held-out loss over its best, ``gap`` 1 where it was never
good although the training loss fell far, ``notable``, ``train_fell`` as a factor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from floatscope_diagnostics.curve_shapes.life import Life, sign
from floatscope_diagnostics.curve_shapes.track import Track, spread
from floatscope_diagnostics.episodes import Symptom

LEAST_EVALS = 3
FEW_EVALS, FEW_FACTOR = 4, 1.1  # with fewer their noise is not known
NOTE_FACTOR, NOTABLE_FACTOR = 1.02, 1.05
NOISE = 3.0  # standard deviations of one evaluation
AFTER_BEST = 2  # evaluations behind the best one
TRAIN_FELL = 1.01
GAP_TRAIN_FELL = 3.0  # times, while the held-out loss is where it began
GAP_HELD_OUT, GAP_RATIO = 0.9, 3.0


def overfit(life: Life) -> Iterator[Symptom]:
    """One symptom if the held-out loss has parted from the training loss."""
    held, train = life.held_out, life.loss
    if held is None or train is None or len(held) < LEAST_EVALS or not held.log or not train.log:
        return
    best = int(np.argmin(held.y))
    fell_since = _fell(train, int(held.step[best]), int(held.step[-1]))
    after = len(held) - 1 - best
    last = float(np.median(held.y[-max(1, min(3, after)) :]))
    rise = last - float(held.y[best])
    noise = spread(np.diff(held.y, n=2)) / math.sqrt(6.0)
    if len(held) < FEW_EVALS and bool((np.diff(held.y[best:]) > 0).all()):
        noise = 0.0  # it rises from one to the next
    extra = {"factor": math.exp(rise), "train_fell": fell_since}
    clear = rise > max(math.log(NOTE_FACTOR), NOISE * noise)
    if clear and after >= AFTER_BEST and fell_since > TRAIN_FELL:
        notable = rise > math.log(NOTABLE_FACTOR if len(held) >= FEW_EVALS else FEW_FACTOR)
        yield _made(life, held, best, extra | {"notable": float(notable), "gap": 0.0})
        return
    fell = _fell(train, int(train.step[0]), int(held.step[-1]))
    later = float(np.median(held.y[len(held) // 2 :]))
    apart = later - float(np.median(train.y[-max(1, len(train) // 5) :]))
    if (
        len(held) >= FEW_EVALS
        and fell >= GAP_TRAIN_FELL
        and later - float(held.y[0]) > math.log(GAP_HELD_OUT)
        and apart > math.log(GAP_RATIO)
    ):
        yield _made(life, held, 0, extra | {"notable": 1.0, "gap": 1.0, "train_fell": fell})


def _made(life: Life, held: Track, best: int, extra: dict[str, float]) -> Symptom:
    worst = best + int(np.argmax(held.y[best:]))
    return sign(
        life,
        "overfit",
        onset=int(held.step[best]),
        detected=int(held.step[min(best + AFTER_BEST, len(held) - 1)]),
        value=float(held.level[-1] - held.level[best]),
        peak=float(held.level[worst]),
        peak_step=int(held.step[worst]),
        expected=float(held.level[best]),
        series="eval_loss",
        rows=len(held) - best,
        extra=extra,
    )


def _fell(train: Track, first: int, last: int) -> float:
    """By which factor the training loss fell between two steps; 1 where it has too few points there."""
    a, b = train.at(first), train.at(last)
    if b <= a:
        return 1.0
    width = max(1, (b - a) // 5)
    before = train.y[max(0, a - width + 1) : a + 1]
    return math.exp(float(np.median(before)) - float(np.median(train.y[b - width + 1 : b + 1])))
