"""Rises of a loss above its best level: spikes that come back, steps that stay, divergence, slow drift.

Signals: ``curve_spike`` (came back), ``curve_step`` (jumped up and stays), ``curve_divergence`` (far above
its best level for good, or back at the level of its start), ``curve_drift`` (rises slowly over a long part).
Each has in ``extra``: ``factor`` (of the level over the best one; of the height in shares of the curve's
range where values take both signs), ``notable`` (1 where a careful reader would act on it), ``points``, and
where it is so ``abrupt``, ``above_start``, ``follows_rate``, ``rate_jump``, ``early``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from floatscope_diagnostics.curve_shapes.excursions import BACK_SHARE, Excursion, excursions
from floatscope_diagnostics.curve_shapes.life import Life, sign
from floatscope_diagnostics.curve_shapes.track import Track, spread
from floatscope_diagnostics.episodes import Symptom

# A rise counts from this factor on, and in series of both signs from this share of the range on.
RISE_FACTOR, RISE_SHARE = 1.2, 0.5
RISE_SIGMA = 8.0  # of the points' own noise; a running minimum lies 3 below the level, tails reach 4
LOCAL_SIGMA, LOCAL_POINTS = 6.0, 12
PROGRESS_SHARE = 0.05  # of what had been gained since the start: less is no loss of training
FEW_POINTS, FEW_FACTOR = 24, 1.25  # with fewer points the rise itself is a part of what noise is taken from
FEW_SIGMA = 5.0  # root mean squares of the upward changes from point to point outside of the rise
NOTABLE_FACTOR = 1.3  # data of another kind moves a loss by less
NOTABLE_POINTS = 3  # a shorter spike is one batch or two
SPARSE_STEPS, SPARSE_POINTS = 3, 1.4  # unless so many steps lie between points: two of them are many batches
SHORT_LOG, BACK_POINTS_SHARE = 100, 0.05  # in so few points a rise has to stay: more that come back are noise
TREND_POINTS, TREND_TAU = (
    8,
    0.8,
)  # Kendall's tau of a short log that rises throughout; 8 points of noise: p < 0.004
EARLY_SHARE = 0.12  # of the log: warm-up
ABRUPT_SHARE, ABRUPT_BINS = 0.6, 3
LOST_SHARE = 0.9  # of all progress lost: back at the start
MOST_SHARE = 0.6  # of it lost: no small rise, whatever its factor
PROGRESS_OF_RISE = 0.25  # so much must have been learned for its loss to mean anything
FAR_FACTOR = 1.5
LAST_FACTOR = 1.8  # one last point this far up is not left for noise
DRIFT_FACTOR, DRIFT_SIGMA = 1.03, 6.0
DRIFT_ABOVE_BEFORE = 2.5  # times the largest earlier rise
DRIFT_SHARE, DRIFT_POINTS = 0.12, 12  # of the points, and points at least, that go up
RATE_RISES = 1.25  # times, within the rise: the loss follows the schedule
RATE_LEADS = 4  # points by which the rate may move before the loss does
RATE_JUMPS = 2.8  # times from one point to the third after it (as for the row-wise signal) and
RATE_ABOVE = 1.5  # times its largest so far: no schedule


@dataclass(frozen=True)
class _Facts:
    factor: float
    points: int
    abrupt: bool
    above_start: bool
    follows_rate: bool
    rate_jump: bool
    early: bool

    def extra(self, *, notable: bool) -> dict[str, float]:
        out = {"factor": self.factor, "points": float(self.points), "notable": float(notable)}
        flags = ("abrupt", "above_start", "follows_rate", "rate_jump", "early")
        return out | {name: 1.0 for name in flags if getattr(self, name)}


def rises(life: Life, track: Track, *, series: str = "loss") -> Iterator[Symptom]:
    """All rises of one curve that are more than noise, in order."""
    still_up = False
    for e in _found(track):
        facts = _facts(life, track, e)
        if _lost(track, e) < PROGRESS_SHARE * _gained(track, e):
            continue
        if e.end is not None:
            yield _spike(life, track, e, facts, series)
            continue
        still_up = True
        if not (life.ends_broken and series == "loss" and facts.points < track.points // 3):
            yield _open(life, track, e, facts, series)
    if not still_up:
        yield from _drift(life, track, series)


def _noise(track: Track) -> float:
    """Of a point about its course over a sixth of the log: slow wandering counts as noise."""
    return max(track.sigma, spread(track.y - track.smooth), track.wander)


def _noise_before(track: Track, e: Excursion) -> float:
    """Noise of the points just before a rise, where the log may scatter more than elsewhere."""
    width = max(LOCAL_POINTS, len(track) // 10)
    before = slice(max(0, e.onset - width), e.onset)
    return spread(track.y[before] - track.smooth[before]) if e.onset >= LOCAL_POINTS else 0.0


def _found(track: Track) -> Iterator[Excursion]:
    noise = _noise(track)
    least = math.log(RISE_FACTOR) if track.log else RISE_SHARE
    if len(track) < FEW_POINTS:
        for e in excursions(track.y, threshold=math.log(FEW_FACTOR) if track.log else 1.0, noise=0.0):
            outside = np.concatenate((np.diff(track.y[: e.onset]), np.diff(track.y[e.end or len(track) :])))
            upward = np.clip(outside, 0.0, None)
            if not len(upward) or e.height > FEW_SIGMA * float(np.sqrt(np.mean(upward**2))):
                yield e
        return
    for e in excursions(track.close, threshold=max(least, RISE_SIGMA * noise), noise=noise):
        if e.height > LOCAL_SIGMA * _noise_before(track, e):
            yield e


def _facts(life: Life, track: Track, e: Excursion) -> _Facts:
    stop = len(track) if e.end is None else e.end
    up = track.close[e.onset : stop]
    level = float(np.median(up[-max(1, min(5, len(up) // 3)) :])) if e.end is None else e.base + e.height
    rise = level - e.base
    soon = float(track.close[e.onset : e.onset + ABRUPT_BINS].max()) - e.base
    begin = float(np.median(track.y[: max(1, min(3, e.low))]))
    first, last = int(track.step[max(e.onset - RATE_LEADS, 0)]), int(track.step[min(e.peak, len(track) - 1)])
    rate = life.rate_near(first, last)
    before = life.rate_near(life.curves.first_step, first)
    follows = jump = False
    if rate is not None and before is not None and rate[0] > 0:
        at = life.rate_near(first, first) or rate
        jump = (
            before[1] > 0 and rate[1] > RATE_ABOVE * before[1] and life.rate_leaps(first, last) > RATE_JUMPS
        )
        follows = rate[1] > RATE_RISES * at[0] and not jump
    return _Facts(
        factor=math.exp(min(rise, 600.0)) if track.log else rise,
        points=int(track.size[e.onset : stop].sum()),
        abrupt=soon >= ABRUPT_SHARE * e.height,
        above_start=begin - e.base > PROGRESS_OF_RISE * rise and rise >= LOST_SHARE * (begin - e.base),
        follows_rate=follows,
        rate_jump=jump,
        early=life.from_start and track.row[e.onset] < EARLY_SHARE * life.curves.rows,
    )


def _lost(track: Track, e: Excursion) -> float:
    return track.value(e.base + e.height) - track.value(e.base)


def _gained(track: Track, e: Excursion) -> float:
    return max(track.value(float(track.smooth[0])) - track.value(e.base), 0.0)


def _spike(life: Life, track: Track, e: Excursion, facts: _Facts, series: str) -> Symptom:
    assert e.end is not None
    far = facts.factor >= NOTABLE_FACTOR or not track.log
    enough = facts.points >= NOTABLE_POINTS
    if track.curve.width > 1 and track.log and e.end - e.onset < NOTABLE_POINTS:
        far, enough = _spike_in_bins(track, e)
    notable = far and enough and not facts.early and not facts.follows_rate
    return sign(
        life,
        "spike",
        onset=int(track.step[e.onset]),
        detected=int(track.step[e.end]),
        last=int(track.until[e.end - 1]),
        value=track.value(e.base + e.height) - track.value(e.base),
        peak=track.value(e.base + e.height),
        peak_step=int(track.curve.high_step[track.kept][e.peak]),
        expected=track.value(e.base),
        series=series,
        rows=facts.points,
        extra=facts.extra(notable=notable),
    )


def _spike_in_bins(track: Track, e: Excursion) -> tuple[bool, bool]:
    """Whether a spike that fills only a part of its bins is high, and long, enough.

    Its length in points is what the bins hold above the base, in heights of the highest point.
    """
    curve, kept = track.curve, track.kept
    base = track.value(e.base)
    up = slice(e.onset, e.end)
    highest = float(curve.high[kept][up].max())
    mean = curve.total[kept][up] / track.size[up]
    points = float(((mean - base) * track.size[up]).sum()) / max(highest - base, 1e-30)
    span = int(curve.last_step[-1]) - int(curve.first_step[0])
    sparse = span >= SPARSE_STEPS * max(int(curve.points.sum()) - 1, 1)
    return highest >= NOTABLE_FACTOR * base, points >= (SPARSE_POINTS if sparse else NOTABLE_POINTS)


def _open(life: Life, track: Track, e: Excursion, facts: _Facts, series: str) -> Symptom:
    """A rise that has not come back: which one, and whether to act on it."""
    kind = "divergence"
    highest = math.exp(min(e.height, 600.0)) if track.log else e.height
    much = _lost(track, e) >= MOST_SHARE * _gained(track, e) > 0
    small = highest < NOTABLE_FACTOR and track.log and not much
    if facts.abrupt and (small or (not facts.above_start and facts.factor < 2.0)):
        kind = "step"
    elif not facts.abrupt and (small or (not facts.above_start and highest < FAR_FACTOR)):
        kind = "drift"
    notable = not small
    if kind == "drift":
        notable = facts.points >= max(DRIFT_POINTS, DRIFT_SHARE * track.points)
    if len(track) - e.onset < 2 and track.curve.width < 4:  # the last point alone
        notable = facts.factor >= LAST_FACTOR
    harder = not facts.abrupt and _held_out_falls(life, e, track)
    if facts.factor < 2.0 and (facts.follows_rate or harder):
        notable = False
    after = track.y[e.peak + 1 :]
    if track.points < SHORT_LOG and len(after):
        back = float(np.mean(after <= e.base + BACK_SHARE * e.height)) > BACK_POINTS_SHARE
        notable = notable and not back and float(after[-1]) > e.base + 0.5 * e.height
    return sign(
        life,
        kind,
        onset=int(track.step[e.onset]),
        detected=int(track.until[min(e.noticed + 2, len(track) - 1)]),
        value=track.value(e.base + e.height) - track.value(e.base),
        peak=track.value(e.base + e.height),
        peak_step=int(track.curve.high_step[track.kept][e.peak]),
        expected=track.value(e.base),
        series=series,
        rows=facts.points,
        extra=facts.extra(notable=notable),
    )


def _drift(life: Life, track: Track, series: str) -> Iterator[Symptom]:
    """A slow rise that lasts to the end, too small to be seen point by point."""
    if len(track) < 2 * DRIFT_POINTS:
        yield from _trend(life, track, series)
        return
    least = math.log(DRIFT_FACTOR) if track.log else RISE_SHARE / 2
    noise = max(track.wander, track.sigma / math.sqrt(max(len(track) // 40, 3)))
    found = list(excursions(track.smooth, threshold=max(least, DRIFT_SIGMA * noise), noise=noise))
    if not found or found[-1].end is not None:
        return
    e = found[-1]
    earlier = excursions(track.smooth[: e.onset], threshold=noise, noise=noise)
    if e.height < DRIFT_ABOVE_BEFORE * max((x.height for x in earlier), default=0.0):
        return  # it has wandered as far before
    facts = _facts(life, track, e)
    thirds = [float(np.median(p)) for p in np.array_split(track.y[e.onset :], 3) if len(p)]
    rising = len(thirds) == 3 and thirds[2] - thirds[0] > 0.25 * e.height and thirds[2] >= thirds[1] - noise
    long = facts.points >= max(DRIFT_POINTS, DRIFT_SHARE * track.points)
    small = _lost(track, e) < PROGRESS_SHARE / 2 * _gained(track, e)
    if not long or small:
        return
    if track.log and facts.factor >= NOTABLE_FACTOR and e.height > RISE_SIGMA * noise:
        yield _open(life, track, e, facts, series)  # plain in the smooth course, though not point by point
        return
    if not rising:
        return
    yield sign(
        life,
        "drift",
        onset=int(track.step[e.onset]),
        detected=int(track.until[min(e.noticed + 2, len(track) - 1)]),
        value=track.value(e.base + e.height) - track.value(e.base),
        peak=track.value(e.base + e.height),
        peak_step=int(track.step[e.peak]),
        expected=track.value(e.base),
        series=series,
        rows=facts.points,
        extra=facts.extra(notable=not facts.follows_rate and not _held_out_falls(life, e, track)),
    )


def _trend(life: Life, track: Track, series: str) -> Iterator[Symptom]:
    """A short log from the start of a run whose loss rises from point to point instead of falling."""
    count = len(track)
    if count < TREND_POINTS or not track.log or not life.from_start or track.curve.width > 1:
        return
    pairs = np.sign(track.y[None, :] - track.y[:, None])[np.triu_indices(count, 1)]
    rise = float(np.median(track.y[-3:]) - np.median(track.y[:3]))
    if float(pairs.mean()) < TREND_TAU or rise < math.log(DRIFT_FACTOR):
        return
    base = float(track.y[:3].min())
    yield sign(
        life,
        "drift",
        onset=int(track.step[0]),
        detected=int(track.until[TREND_POINTS - 1]),
        value=track.value(base + rise) - track.value(base),
        peak=float(track.level.max()),
        peak_step=int(track.step[int(track.y.argmax())]),
        expected=track.value(base),
        series=series,
        rows=count,
        extra={"factor": math.exp(rise), "points": float(count), "notable": 1.0},
    )


def _held_out_falls(life: Life, e: Excursion, track: Track) -> bool:
    """Whether the held-out loss went on falling while the training loss rose: then the data got harder."""
    held = life.held_out
    if held is None or held is track:
        return False
    at = held.at(int(track.step[e.onset]))
    return len(held) - at >= 2 and float(held.y[-1]) < float(held.y[at])
