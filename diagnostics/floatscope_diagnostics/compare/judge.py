"""The comparison of two runs: everything that is asked of them, and the decision."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.compare.bootstrap import Band, mean_band
from floatscope_diagnostics.compare.casts import LossyCast, lossy_casts
from floatscope_diagnostics.compare.noise import normal_quantile
from floatscope_diagnostics.compare.pairing import NotComparable, Pairs, pair
from floatscope_diagnostics.compare.separation import Separation, last_stretch, separations
from floatscope_diagnostics.compare.shape import Shape, shape_of
from floatscope_diagnostics.compare.side import Side
from floatscope_diagnostics.compare.tensors import TensorParting, compare_tensors

Float64 = NDArray[np.float64]
Decision = Literal["same", "worse", "better", "undecided"]

DEFAULT_CONFIDENCE = 0.95
DEFAULT_MARGIN_NATS = 0.02
"""What two healthy runs on the same batches may differ by. Of 14 pairs of small models from one seed, in BF16
and in FP8 or FP16, 2,000 steps each, none ended worse by more than 0.02 nats and one better by 0.031;
Megatron reports gaps below 0.01 after billions of tokens and larger ones early on."""
LAST_SHARE = 0.25
MIN_LAST_PAIRS = 8
LAST_PAIRS = 32  # at least, where there are as many
EARLY_SHARE = 0.1  # a gap that opens within the first tenth was there from the start
POWER = 0.8  # chance to see a difference of the margin, for the steps that a decision needs
LOUD_TIMES = 20.0  # times the typical difference; tails of healthy pairs reach 12
LOUD_FLOOR_NATS = 0.02
LOUD_SHARE = 0.1  # more such steps are no exception
LR_DIGITS = 0.01  # relative; loggers print three digits
TOO_CLOSE = 0.1  # of the margin: a mean so near to it is not decided by waiting


@dataclass(frozen=True)
class Settings:
    """confidence: of every band and test, between 0.5 and 1.  margin: nats that matter, at least 0."""

    confidence: float = DEFAULT_CONFIDENCE
    margin: float = DEFAULT_MARGIN_NATS


@dataclass(frozen=True)
class Window:
    """A band over the pairs from first_step to last_step."""

    first_step: int
    last_step: int
    pairs: int
    band: Band


@dataclass(frozen=True)
class Parting:
    """When the losses part, as steps. beyond: the margin in nats that the difference is proven to exceed."""

    sign: int
    onset_step: int
    proven_step: int
    beyond: float


@dataclass(frozen=True)
class NonFinite:
    """The first step at which one run's loss is not finite and the other's is. lasting: to the last pair."""

    side: Literal["run", "baseline"]
    step: int
    steps: int
    lasting: bool


@dataclass(frozen=True)
class Needed:
    """Pairs a decision needs.

    for_margin: to see a difference of the margin with probability POWER.  more_steps: further training steps
    until the band leaves the margin, if the difference stays as it is; None where waiting will not help, 0
    where it is decided.
    """

    for_margin: int | None
    more_steps: int | None


@dataclass(frozen=True)
class LoudSteps:
    """Single steps whose difference is out of all proportion: the first, the largest, and how many."""

    first_step: int
    largest_step: int
    largest: float
    steps: int


@dataclass(frozen=True)
class LrDiffers:
    """The first of ``steps`` common steps with different learning rates, and these."""

    step: int
    run: float
    base: float
    steps: int


@dataclass(frozen=True, eq=False)
class Comparison:
    """Everything that was found.

    judged: the window the decision rests on.  parting: the first step at which the losses can be told apart.
    beyond_margin: the same for a difference larger than the margin.  since: the step from which on the runs
    are apart as they are at the end, None if they are not.  casts: of the run, that lose too much at its end;
    None where the statistics of tensors were not read.
    """

    run: Side
    base: Side
    settings: Settings
    pairs: Pairs
    whole: Window | None
    last: Window | None
    judged: Window | None
    first_difference: int | None
    parting: Parting | None
    beyond_margin: Parting | None
    since: int | None
    lr_differs: LrDiffers | None
    loud: LoudSteps | None
    nonfinite: NonFinite | None
    both_nonfinite: int | None
    shape: Shape | None
    tensors: TensorParting
    needed: Needed
    decision: Decision
    casts: tuple[LossyCast, ...] | None = ()


def compare(run: Side, base: Side, settings: Settings) -> Comparison:
    """Compares two runs. Raises NotComparable when they share nothing."""
    pairs = pair(run, base)
    tensors = compare_tensors(run, base, paired=pairs.paired, other_data=pairs.other_data)
    nonfinite, both_bad = _nonfinite(pairs)
    good = np.isfinite(pairs.gap)
    step, gap = pairs.step[good], pairs.gap[good]
    if not len(step) and nonfinite is None:
        raise NotComparable("no common step has a finite loss in either run: there is nothing to compare")
    alpha = 1.0 - settings.confidence
    partings = _partings(step, separations(gap, alpha=alpha))
    beyond = _partings(step, separations(gap, alpha=alpha, margin=settings.margin))
    whole = last = judged = None
    shape = since = None
    if len(step):
        whole = _window(step, gap, settings)
        count = max(math.ceil(LAST_SHARE * len(step)), min(LAST_PAIRS, len(step)))
        last = _window(step[-count:], gap[-count:], settings)
        opened_late = [p.onset_step for p in (*partings, *beyond) if p.onset_step > last.first_step]
        if opened_late:  # the last part is mixed: judge what came after the runs parted
            tail = min(int(np.searchsorted(step, max(opened_late))), len(step) - MIN_LAST_PAIRS)
            last = _window(step[tail:], gap[tail:], settings)
        since = _since(step, gap, last, partings, beyond)
        opened = since if since is not None else partings[0].onset_step if partings else None
        after = step >= (step[0] if opened is None else opened)
        shape = shape_of(step[after], gap[after], confidence=settings.confidence, apart=opened is not None)
        judged = _judged(step, whole, last, opened, shape)
    decision = _decision(judged, nonfinite, settings)
    needed = _needed(judged, decision, settings, stride=pairs.stride)
    differ = np.flatnonzero((pairs.gap != 0.0) | pairs.run_bad | pairs.base_bad)
    return Comparison(
        run=run,
        base=base,
        settings=settings,
        pairs=pairs,
        whole=whole,
        last=last,
        judged=judged,
        first_difference=int(pairs.step[differ[0]]) if len(differ) else None,
        parting=partings[0] if partings else None,
        beyond_margin=beyond[0] if beyond else None,
        since=since,
        lr_differs=_lr_differs(run, base),
        loud=_loud(step, gap, settings),
        nonfinite=nonfinite,
        both_nonfinite=both_bad,
        shape=shape,
        tensors=tensors,
        needed=needed,
        decision=decision,
        casts=lossy_casts(run.run, run.tensors),
    )


def _window(step: NDArray[np.int64], gap: Float64, settings: Settings) -> Window:
    band = mean_band(gap, confidence=settings.confidence)
    return Window(int(step[0]), int(step[-1]), len(step), band)


def _partings(step: NDArray[np.int64], found: list[Separation]) -> list[Parting]:
    return [Parting(s.sign, int(step[s.onset]), int(step[s.proven]), s.margin) for s in found]


def _since(
    step: NDArray[np.int64], gap: Float64, last: Window, partings: list[Parting], beyond: list[Parting]
) -> int | None:
    """The step from which on the runs are apart as they are in the last part.

    A separation that was proven to the side of today's difference and not to the other names it itself.
    """
    if not last.band.excludes(0.0):
        return None
    sign = 1 if last.band.mean > 0.0 else -1
    for found in (beyond, partings):
        if [p.sign for p in found] == [sign]:
            return found[0].onset_step
    if not partings:
        return None
    return int(step[last_stretch(gap, last.band.mean)])


def _loud(step: NDArray[np.int64], gap: Float64, settings: Settings) -> LoudSteps | None:
    """Steps far outside the differences of the others, which a mean does not show."""
    if len(gap) < MIN_LAST_PAIRS:
        return None
    away = np.abs(gap / 2.0 - np.median(gap / 2.0)) * 2.0
    limit = max(LOUD_TIMES * 1.4826 * float(np.median(away)), settings.margin, LOUD_FLOOR_NATS)
    loud = np.flatnonzero(away > limit)
    if not len(loud) or len(loud) > LOUD_SHARE * len(gap):
        return None
    top = int(loud[np.argmax(away[loud])])
    return LoudSteps(int(step[loud[0]]), int(step[top]), float(gap[top]), len(loud))


def _lr_differs(run: Side, base: Side) -> LrDiffers | None:
    """Common steps on which the learning rates differ by more than rounding."""
    step, a, b = np.intersect1d(run.step, base.step, assume_unique=True, return_indices=True)
    x, y = run.lr[a], base.lr[b]
    with np.errstate(invalid="ignore"):
        differ = np.flatnonzero(np.abs(x - y) > LR_DIGITS * np.maximum(np.abs(x), np.abs(y)))
    if not len(differ):
        return None
    k = int(differ[0])
    return LrDiffers(int(step[k]), float(x[k]), float(y[k]), len(differ))


def _nonfinite(pairs: Pairs) -> tuple[NonFinite | None, int | None]:
    """The one-sided loss of finiteness, if any, and the first step at which both are not finite."""
    both = np.flatnonzero(pairs.run_bad & pairs.base_bad)
    first_both = int(pairs.step[both[0]]) if len(both) else None
    one = np.flatnonzero(pairs.run_bad ^ pairs.base_bad)
    if not len(one):
        return None, first_both
    k = int(one[0])
    in_run = bool(pairs.run_bad[k])
    bad = pairs.run_bad if in_run else pairs.base_bad
    other = pairs.base_bad if in_run else pairs.run_bad
    lasting = bool(bad[-1] and not other[-1])
    if lasting:  # since when without a break
        k = int(np.flatnonzero(~bad)[-1]) + 1 if not bad.all() else 0
    name: Literal["run", "baseline"] = "run" if in_run else "baseline"
    return NonFinite(name, int(pairs.step[k]), int((bad & ~other).sum()), lasting), first_both


def _judged(step: NDArray[np.int64], whole: Window, last: Window, opened: int | None, shape: Shape) -> Window:
    """The last part, or all pairs where the difference has been the same from the start: they tell more."""
    early = step[0] + EARLY_SHARE * (step[-1] - step[0])
    if not last.band.low <= whole.band.mean <= last.band.high:
        return last
    if opened is None or (opened <= early and shape.kind in ("constant", "cannot_tell_yet")):
        return whole
    return last


def _decision(judged: Window | None, nonfinite: NonFinite | None, settings: Settings) -> Decision:
    if nonfinite is not None and nonfinite.lasting:
        return "worse" if nonfinite.side == "run" else "better"
    if judged is None:
        return "undecided"
    if judged.band.excludes(settings.margin):
        return "worse" if judged.band.mean > 0.0 else "better"
    return "same" if judged.band.within(settings.margin) or judged.band.largest == 0.0 else "undecided"


def _needed(judged: Window | None, decision: Decision, settings: Settings, *, stride: int) -> Needed:
    if judged is None:
        return Needed(None, None)
    z = normal_quantile(0.5 + 0.5 * settings.confidence)
    noise = judged.band.noise
    for_margin = None
    if settings.margin > 0.0:
        root = (z + normal_quantile(POWER)) * noise.long_run_sd / settings.margin
        for_margin = max(math.ceil(root * root), 2) if root < 3e7 else None
    if decision != "undecided":
        return Needed(for_margin, 0)
    room = abs(settings.margin - abs(judged.band.mean))
    if room <= TOO_CLOSE * settings.margin or noise.n < 3 or not math.isfinite(noise.long_run_sd):
        return Needed(for_margin, None)
    root = z * noise.long_run_sd / room
    if not root < 3e7:
        return Needed(for_margin, None)
    return Needed(for_margin, max(math.ceil(root * root) - judged.pairs, 1) * stride)
