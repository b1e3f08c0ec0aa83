"""All symptoms that the curves of a run show, and what of them could not be judged."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from floatscope_diagnostics.curve_shapes.book import CurveBook
from floatscope_diagnostics.curve_shapes.broken import broken
from floatscope_diagnostics.curve_shapes.flat import frozen, plateau
from floatscope_diagnostics.curve_shapes.held_out import overfit
from floatscope_diagnostics.curve_shapes.life import PREFIX, Life, sign
from floatscope_diagnostics.curve_shapes.rises import rises
from floatscope_diagnostics.curve_shapes.scaler import scale_falls
from floatscope_diagnostics.episodes import Symptom

SHORT_POINTS = 8  # evaluations whose noise can be told
FAR_UP = PREFIX + "divergence"
WORSE_FACTOR = 1.3  # loss after a restart over the loss before it


def shapes(book: CurveBook, *, vocab_size: int | None = None) -> list[Symptom]:
    """Symptoms of all segments. Empty for a run with tensor statistics, whose tensors are judged."""
    if book.closed or book.rank is None:
        return []
    found: list[Symptom] = []
    lives = [Life(s, book.rank, resumed=s.segment > 0, vocab_size=vocab_size) for s in book.lives()]
    with np.errstate(all="ignore"):  # a log may hold any number
        for life in lives:
            found += _of(life)
        found += _restarts(book, lives)
    return found


def _of(life: Life) -> Iterator[Symptom]:
    yield from broken(life)
    yield from scale_falls(life)
    parted = list(overfit(life))
    yield from parted
    loss = life.loss
    if loss is None:
        loss = life.held_out  # an evaluation is all there is
        series = "eval_loss"
    else:
        series = "loss"
    if loss is None or len(loss) < 2:
        return
    if series == "loss":
        stopped = list(frozen(life))
        yield from stopped
        if stopped:
            yield from (s for s in rises(life, loss) if s.signal == FAR_UP)
            return
    up = _placed(rises(life, loss, series=series))
    held = life.held_out
    if series == "loss" and held is not None and len(held) >= SHORT_POINTS and not any(s.open for s in up):
        worse = [s for s in rises(life, held, series="eval_loss") if s.open]
        yield from (s for s in worse if not parted)  # overfitting says it better
    yield from (replace(s, extra={**s.extra, "notable": 0.0}) if life.rewarded else s for s in up)
    if not any(s.open or s.extra.get("notable") for s in up) and not life.rewarded:
        yield from plateau(life, loss)


def _placed(found: Iterator[Symptom]) -> list[Symptom]:
    """Rises, those to act on with their place in the order: what does not move as they are seen better."""
    out: list[Symptom] = []
    for s in found:
        place = sum("place" in x.extra for x in out)
        out.append(replace(s, extra={**s.extra, "place": float(place)}) if s.extra.get("notable") else s)
    return out


def _restarts(book: CurveBook, lives: list[Life]) -> Iterator[Symptom]:
    """``curve_restart``: steps went back; extra: ``times`` in the whole run, ``factor`` of the loss after the
    last seam over before, where both are known.
    """
    by_number = {life.segment: life for life in lives}
    for seam in book.seams[-1:]:
        life, before = by_number.get(seam.segment), by_number.get(seam.segment - 1)
        if life is None:
            continue
        extra = {"times": float(book.seam_count), "back_to": float(seam.next_step)}
        if before is not None and before.loss is not None and life.loss is not None:
            old, new = before.loss, life.loss
            if old.log and new.log and seam.next_step >= int(old.step[0]):
                level = float(old.smooth[old.at(seam.next_step)])
                extra["factor"] = math.exp(float(np.median(new.y[:3])) - level)
        yield sign(
            life,
            "restart",
            onset=seam.next_step,
            detected=seam.next_step,
            last=seam.next_step,
            value=float(seam.last_step),
            extra=extra,
        )
