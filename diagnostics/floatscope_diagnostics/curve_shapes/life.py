"""The curves of one segment together, and the one form in which a test of shape says what it saw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from floatscope_diagnostics.curve_shapes.bins import Curve
from floatscope_diagnostics.curve_shapes.book import SegmentCurves
from floatscope_diagnostics.curve_shapes.track import Track, track_of
from floatscope_diagnostics.episodes import Symptom

PREFIX = "curve_"  # of the signals that come from here
LEAP_POINTS = 3
REWARD_WORDS = ("reward", "episode_return", "advantage", "policy_loss", "entropy_loss", "d_loss", "g_loss")
NEAR_START = 0.25  # a log that begins later in its own steps is a window of a longer run


@dataclass(frozen=True)
class Life:
    """One segment. rank: whose rows they are.  resumed: it began where steps went back.  vocab_size: of the
    run, if known.
    """

    curves: SegmentCurves
    rank: int
    resumed: bool = False
    vocab_size: int | None = None

    @cached_property
    def loss(self) -> Track | None:
        return track_of(self.curves.get("loss"))

    @cached_property
    def held_out(self) -> Track | None:
        return track_of(self.curves.get("eval_loss"))

    @cached_property
    def rate(self) -> Track | None:
        """The learning rate, if it was ever above 0."""
        found = track_of(self.curves.get("lr"))
        return found if found is not None and (found.level > 0).any() else None

    @property
    def segment(self) -> int:
        return self.curves.segment

    @property
    def last_step(self) -> int:
        return self.curves.last_step

    @property
    def from_start(self) -> bool:
        """Whether the log shows the run from its beginning, so that its first level is the untrained one."""
        span = self.curves.last_step - self.curves.first_step
        return not self.resumed and self.curves.first_step <= max(1.0, NEAR_START * span)

    @cached_property
    def rewarded(self) -> bool:
        """Whether the run logs rewards or returns: then its loss need not fall."""
        return any(word in name.lower() for name in self.curves.curves for word in REWARD_WORDS)

    @cached_property
    def ends_broken(self) -> bool:
        """Whether the loss is NaN or Inf at its last points."""
        loss = self.curves.get("loss")
        return loss is not None and ends_nonfinite(loss)

    def rate_near(self, first: int, last: int) -> tuple[float, float] | None:
        """Smallest and largest learning rate between two steps, None where none is logged."""
        rate = self.rate
        if rate is None:
            return None
        a, b = rate.at(first), rate.at(last)
        return float(rate.level[a : b + 1].min()), float(rate.level[a : b + 1].max())

    def rate_leaps(self, first: int, last: int) -> float:
        """Largest factor by which the rate rose within three points between two steps, warm-up aside."""
        rate = self.rate
        if rate is None or len(rate) <= LEAP_POINTS:
            return 1.0
        a, b = max(rate.at(first) - LEAP_POINTS, LEAP_POINTS), rate.at(last)
        before, after = rate.level[a : b + 1 - LEAP_POINTS], rate.level[a + LEAP_POINTS : b + 1]
        known = before > 0
        return float((after[known] / before[known]).max()) if known.any() else 1.0


def ends_nonfinite(curve: Curve) -> bool:
    bad, finite = curve.nan + curve.inf, curve.finite
    some = np.flatnonzero(bad > 0)
    return bool(len(some)) and (finite[-1] == 0 or bad[-1] > finite[-1])


def sign(
    life: Life,
    signal: str,
    *,
    onset: int,
    detected: int,
    last: int | None = None,
    value: float,
    peak: float | None = None,
    peak_step: int | None = None,
    expected: float | None = None,
    series: str = "loss",
    rows: int = 1,
    extra: Mapping[str, float] | None = None,
) -> Symptom:
    """A symptom of a curve. last: last step with the sign, None while it goes on at the end of the log.

    value, peak, expected: in the unit of ``series``, whose name is kept as ``peak_tensor``.
    """
    end = life.last_step if last is None else last
    return Symptom(
        signal=PREFIX + signal,
        rank=life.rank,
        segment=life.segment,
        onset=onset,
        detected=min(max(detected, onset), life.last_step),
        last=max(end, onset),
        rows=rows,
        rows_after=rows,
        open=last is None,
        tensors=(),
        first=(),
        value=value,
        peak=value if peak is None else peak,
        peak_step=onset if peak_step is None else peak_step,
        peak_tensor=series,
        expected=expected,
        extra=dict(extra or {}),
    )
