"""Curves that do not move: a loss that repeats itself exactly, and one that makes no progress.

Signals: ``curve_frozen`` (extra: ``digits`` significant digits printed, ``norm`` 1 if the gradient norm is
frozen or 0 as well), ``curve_plateau`` (extra: ``notable``, ``never`` 1 if nothing was ever learned,
``chance`` the number of classes whose logarithm the loss is).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from floatscope_diagnostics.curve_shapes.bins import Curve, Float64, Int64
from floatscope_diagnostics.curve_shapes.life import Life, sign
from floatscope_diagnostics.curve_shapes.track import Track, blocks
from floatscope_diagnostics.episodes import Symptom

SAME_POINTS, SAME_POINTS_WITH_NORM = 16, 6
COARSE_POINTS = 64  # where fewer than three digits are printed
FINE_DIGITS = 3
PLATEAU_POINTS = 60
BLOCKS = 20
FLAT_SHARE = 0.01  # of the level: no progress
NO_NOISE = 1e-9
SPIKES_ASIDE = 1.35  # standard deviation of a normal sample over that of it without its largest sixth
ERRORS = 1.5  # standard errors by which a change must be known
NEVER_ROSE = 0.03  # of the level: nor was it ever better
HIGH_LEVEL = 4.0  # nats: a language model that has learned word frequencies and no more has 5 to 8
STUCK_SHARE, STUCK_LEVEL = 0.6, 0.6  # of the points without progress, at such a share of the first level
CLASSES = (2, 3, 4, 5, 10, 100, 1000)  # usual numbers of classes; chance level is their logarithm
CHANCE_SHARE = 0.005
GUESS_POINTS = 8
GUESS_LEVEL = 0.85  # of the first level: an untrained head costs a little more than a guess
RATE_IN_USE = 0.3  # of its peak


def frozen(life: Life) -> Iterator[Symptom]:
    """A loss that is the same to the last digit from some point on."""
    curve = life.curves.get("loss")
    if curve is None or len(curve) == 0 or curve.finite[-1] == 0:
        return
    value = float(curve.last[-1])
    begin, count = _same_since(curve)
    if value == 0.0 or begin is None:
        return
    digits = _digits(value)
    norm = life.curves.get("grad_norm")
    with_norm = norm is not None and norm.finite[-1] > 0 and _same_since(norm)[1] >= SAME_POINTS_WITH_NORM
    if digits < FINE_DIGITS:
        needed = COARSE_POINTS if with_norm else 1 << 62
    else:
        needed = SAME_POINTS_WITH_NORM if with_norm else SAME_POINTS
    if count < needed:
        return
    yield sign(
        life,
        "frozen",
        onset=begin,
        detected=_step_after(curve, begin, needed),
        value=value,
        rows=count,
        extra={"digits": float(digits), "norm": float(with_norm), "points": float(count)},
    )


def _same_since(curve: Curve) -> tuple[int | None, int]:
    """Step of the first of the equal points at the end, and how many they are; in wide bins a lower bound."""
    equal = curve.same == curve.finite
    moved = np.flatnonzero(~equal)
    last = int(moved[-1]) if len(moved) else 0
    count = int(curve.finite[last + 1 :].sum())
    if curve.width == 1:
        return int(curve.first_step[last]), count + 1
    return (int(curve.last_step[last]), count) if count else (None, 0)


def _step_after(curve: Curve, begin: int, points: int) -> int:
    at = int(np.searchsorted(curve.first_step, begin)) + max(points // curve.width, 1) - 1
    return int(curve.last_step[min(at, len(curve) - 1)])


def _digits(value: float) -> int:
    """Significant digits of a number as it was printed, at most 6."""
    text = f"{abs(value):.6g}"
    return len(text.partition("e")[0].replace(".", "").lstrip("0").rstrip("0")) if value else 0


def plateau(life: Life, track: Track) -> Iterator[Symptom]:
    """No progress over many points of a log that shows the run from its start."""
    if not life.from_start or life.ends_broken:
        return
    if track.points < PLATEAU_POINTS:
        yield from _guessing(life, track)
        return
    middle = blocks(track.y, BLOCKS)
    error = _error(middle)
    unit = 1.0 if track.log else abs(float(np.median(track.level))) / track.scale or 1.0
    limit = FLAT_SHARE * unit
    if not NO_NOISE < ERRORS * error <= limit:
        return  # too noisy to say that nothing moves, or too few digits to say anything
    end = float(np.median(middle[-4:]))
    first = float(np.median(middle[:2]))
    start = float(np.median(track.y[: max(1, min(3, len(track) // 20))]))
    wide = max(limit, 6.0 * error)  # three standard deviations of a block, whose error is halved above
    never = abs(first - end) < wide and middle.min() > end - wide and start - end < NEVER_ROSE * unit
    flat = np.flatnonzero(np.abs(middle - end) > wide)
    begin = 0 if never or not len(flat) else int(flat[-1]) + 1
    share = 1.0 - begin / len(middle)
    if not never and share < STUCK_SHARE:
        return
    level = track.value(end)
    chance = _chance(level, life.vocab_size) if track.log else 0
    if never:
        notable = level >= HIGH_LEVEL or chance > 0
    else:
        share_left = level / track.value(start) if track.log else 0.0
        guessing = chance > 0 and share_left > GUESS_LEVEL  # further down the level is one by chance itself
        high = share_left > STUCK_LEVEL and (level >= HIGH_LEVEL or guessing)
        notable = high and _rate_in_use(life, track, begin / len(middle))
        if track.log and level < 0.5 * track.value(start):
            return  # far below where it began: it has converged
    at = int(track.step[begin * len(track) // len(middle)])
    yield sign(
        life,
        "plateau",
        onset=at,
        detected=int(track.until[_enough(track, at)]),
        value=level,
        expected=track.value(start),
        rows=int(share * track.points),
        extra={"notable": float(notable), "never": float(never), "chance": float(chance), "share": share},
    )


def _guessing(life: Life, track: Track) -> Iterator[Symptom]:
    """A short log whose every point is the level of a uniform guess."""
    level = float(np.median(track.level))
    classes = _chance(level, life.vocab_size) if track.log and track.points >= GUESS_POINTS else 0
    if classes and float(np.abs(track.level / level - 1.0).max()) < CHANCE_SHARE:
        yield sign(
            life,
            "plateau",
            onset=int(track.step[0]),
            detected=int(track.until[GUESS_POINTS - 1]),
            value=level,
            expected=level,
            rows=track.points,
            extra={"notable": 1.0, "never": 1.0, "chance": float(classes), "share": 1.0},
        )


def _enough(track: Track, at: int) -> int:
    points: Int64 = np.cumsum(track.size[track.at(at) :])
    return min(track.at(at) + int(np.searchsorted(points, PLATEAU_POINTS)), len(track) - 1)


def _error(middle: Float64) -> float:
    """Standard error of the level of a fifth of the log, from how its last blocks scatter about a line."""
    part = middle[-int(STUCK_SHARE * BLOCKS) :]
    at = np.arange(len(part))
    off = np.sort(np.abs(part - np.polyval(np.polyfit(at, part, 1), at)))[: -len(part) // 6]  # spikes aside
    return SPIKES_ASIDE * float(np.sqrt(np.mean(off**2))) / math.sqrt(4.0)


def _chance(level: float, vocab_size: int | None) -> int:
    """The number of classes whose logarithm the level is, 0 for none."""
    known: tuple[int, ...] = (vocab_size,) if vocab_size else ()
    for classes in (*CLASSES, *known):
        if classes > 1 and abs(level - math.log(classes)) < CHANCE_SHARE * math.log(classes):
            return classes
    return 0


def _rate_in_use(life: Life, track: Track, begin: float) -> bool:
    """Whether the learning rate was near its peak in the first half of the flat part, or is not logged."""
    rate = life.rate
    if rate is None:
        return True
    middle = rate.at(int(track.step[int((0.5 + 0.5 * begin) * (len(track) - 1))]))
    return float(rate.level[middle]) >= RATE_IN_USE * float(rate.level.max())
