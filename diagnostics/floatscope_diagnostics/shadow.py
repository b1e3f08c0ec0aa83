"""The shadow scale: the scale the declared recipe must give, recomputed from the streamed amaxes.

Transformer Engine's rule (``common/recipe/delayed_scaling.cu``, ``kernel_bulk``): after each pass
``scale = format_max / 2^margin / amax`` where amax is the largest of the last ``amax_history_len`` passes
(``max``) or the newest (``most_recent``); an amax of 0, Inf or NaN keeps the old scale; a newest amax of 0
does not roll the history; NaN is dropped by the maximum; an infinite scale becomes FLT_MAX. The scale of a
step was made from the passes before it.

What came before the first row is unknown, but the scale seen at the first row tells the largest unknown amax,
and that bound can only shrink. So the shadow is an interval: the scale may not be higher than the amaxes seen
allow, nor lower than both they and the unknown rest explain. The window maximum is kept as the staircase of
amaxes that can still become the maximum, at most STAIRS entries a tensor instead of the whole window; where a
longer staircase would be needed the interval widens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.columns import CURRENT, DELAYED_MAX, DELAYED_RECENT, Columns

Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

STAIRS = 24  # entries; a random series of 1,024 needs 7 on average (harmonic number)
# 0.35 %: logs print four digits or more; the smallest real fault seen moves the scale by over 0.5 %
TOLERANCE_LOG2 = 0.005
LONGEST_HOLE_STEPS = 1 << 20  # a longer hole in the log empties every history just as well
FLT_MAX = float(np.finfo(np.float32).max)


class ShadowScale:
    """Expected scale of every column, one rank (or one reduction group)."""

    ARRAYS = (
        "count",
        "born",
        "unknown",
        "last_scale",
        "last_amax",
        "stair_value",
        "stair_pass",
        "stair_loose",
    )

    def __init__(self, size: int = 0) -> None:
        self.count = np.zeros(size, np.int64)  # passes that rolled the history
        self.born = np.zeros(size, np.int64)  # count at which the unknown history was last bounded
        self.unknown = np.full(size, np.nan)  # bound on amaxes from before `born`; NaN: not bounded yet
        self.last_scale = np.full(size, np.nan)
        self.last_amax = np.full(size, np.nan)
        self.stair_value = np.zeros((STAIRS, size))
        self.stair_pass = np.full((STAIRS, size), -1, np.int64)
        self.stair_loose = np.zeros((STAIRS, size), bool)
        self._last: int | None = None
        self._version = -1
        self._top: Float64 = np.empty(0)
        self._history: NDArray[np.int64] = np.zeros(0, np.int64)
        self._known: Float64 = np.zeros(size)  # largest amax sure to be in the window, from ``expect``
        self._mine: dict[int, Bool] = {}
        self._has: dict[int, bool] = {}

    def resize(self, size: int) -> None:
        have = len(self.count)
        if size == have:
            return
        fresh = ShadowScale(size)
        for name in self.ARRAYS:
            getattr(fresh, name)[..., :have] = getattr(self, name)
            setattr(self, name, getattr(fresh, name))

    def forget(self) -> None:
        """A new segment begins: nothing of the history seen so far is sure to be in it."""
        self.unknown[:] = np.nan
        self.stair_pass[:] = -1
        self.stair_value[:] = 0.0
        self._last = None

    def step(
        self, step: int, amax: Float64, scale: Float64, columns: Columns, *, passes: int = 1
    ) -> tuple[Float64, Float64]:
        """``expect`` and then ``advance``: takes one row (S,) and returns the lowest and highest scale the
        recipe allows at this step; NaN: not known.

        amax, scale: NaN where missing.  passes: forward passes of this step.  Steps that were not logged
        leave a hole of unknown amaxes: afterwards only the upper bound is checked until a full window has
        been seen.
        """
        bounds = self.expect(step, amax, columns, passes=passes)
        self.advance(step, amax, scale, columns, passes=passes)
        return bounds

    def expect(
        self, step: int, amax: Float64, columns: Columns, *, passes: int = 1
    ) -> tuple[Float64, Float64]:
        """The lowest and highest scale (S,) that the recipe allows at ``step``, from the rows before it."""
        size = len(columns)
        self.resize(size)
        self._prepare(columns)
        if self._last is None or step != self._last + 1:
            self.unknown[:] = np.nan
            hole = 0 if self._last is None else min(max(step - self._last - 1, 0), LONGEST_HOLE_STEPS)
            self.count += hole * passes
        low = np.full(size, np.nan)
        high = np.full(size, np.nan)
        with np.errstate(all="ignore"):
            if self._has[DELAYED_MAX]:
                self._expect_max(columns, amax, low, high, passes)
            if self._has[DELAYED_RECENT]:
                self._expect_recent(low, high, passes)
            if self._has[CURRENT]:
                current = columns.rule == CURRENT
                ideal = np.where(
                    (amax > 0) & np.isfinite(amax), np.minimum(self._top / amax, FLT_MAX), np.nan
                )
                high[current] = ideal[current]
                low[current] = ideal[current] / 2  # power-of-two rounding may take up to one bit
        return low, high

    def advance(self, step: int, amax: Float64, scale: Float64, columns: Columns, *, passes: int = 1) -> None:
        """Takes in the row that ``expect`` was asked about."""
        self._last = step
        with np.errstate(all="ignore"):
            if self._has[DELAYED_MAX]:
                mine = self._mine[DELAYED_MAX]
                self._bound(mine, scale)
                self._roll(mine, columns, amax, passes)
            if self._has[DELAYED_RECENT]:
                self.unknown = np.where(self._mine[DELAYED_RECENT], 0.0, self.unknown)
        self.last_scale = np.where(np.isfinite(scale), scale, self.last_scale)
        self.last_amax = amax
        self.unknown[np.isnan(amax)] = np.nan

    def half_window(self, columns: Columns) -> Float64:
        """The scale (S,) that a history of half the declared length would give, between ``expect`` and
        ``advance``: what advancing it twice a step looks like.
        """
        alive = self.stair_pass >= (self.count - columns.history // 2)[None, :]
        newest = np.where(alive, self.stair_value, 0.0).max(axis=0) if len(self.count) else np.zeros(0)
        with np.errstate(all="ignore"):
            return np.where((columns.rule == DELAYED_MAX) & (newest > 0), self._top / newest, np.nan)

    def _prepare(self, columns: Columns) -> None:
        """What follows from the columns alone, made again when they change."""
        if self._version == columns.version and len(self._top) == len(columns):
            return
        self._version = columns.version
        self._mine = {rule: columns.rule == rule for rule in (DELAYED_MAX, DELAYED_RECENT, CURRENT)}
        self._has = {rule: bool(mask.any()) for rule, mask in self._mine.items()}
        self._top = columns.fmax * np.exp2(-columns.margin_log2)
        self._history = columns.history

    def _expect_max(self, columns: Columns, amax: Float64, low: Float64, high: Float64, passes: int) -> None:
        mine, top = self._mine[DELAYED_MAX], self._top
        # The entry of pass p is in the window while p >= count - history; with several passes in this step
        # the last of them has pushed out up to passes - 1 more, and an entry may be that much older than
        # noted.
        horizon = self.count - columns.history
        known = self._known = np.where(self.stair_pass >= horizon, self.stair_value, 0.0).max(axis=0)
        sure = known
        if passes > 1 or self.stair_loose.any():
            sure_live = (self.stair_pass >= horizon + 2 * (passes - 1)) & ~self.stair_loose
            sure = np.where(sure_live, self.stair_value, 0.0).max(axis=0)
        open_rest = np.isnan(self.unknown)
        expired = (self.count - self.born >= columns.history) & ~open_rest
        rest = np.where(expired, 0.0, self.unknown)  # NaN: anything may be hidden there
        most = np.fmax(known, rest)
        if passes > 1:
            most = np.fmax(most, np.where(np.isnan(amax), np.inf, amax))
        hi = np.where(sure > 0, np.minimum(top / sure, FLT_MAX), np.inf)
        lo = np.where(most > 0, np.minimum(top / most, FLT_MAX), 0.0)
        lo[open_rest] = 0.0
        # Inf in the window, or nothing but zeros: the old scale is kept.
        keep = np.isinf(sure) | ((most == 0) & ~open_rest)
        odd = np.isinf(most)
        if keep.any() or odd.any():
            kept = np.where(open_rest, np.nan, self.last_scale)
            lo = np.where(keep, kept, np.where(odd, 0.0, lo))
            hi = np.where(keep, kept, np.where(np.isinf(rest) | np.isinf(known), np.inf, hi))
        np.copyto(low, lo, where=mine)
        np.copyto(high, hi, where=mine)

    def _bound(self, mine: Bool, scale: Float64) -> None:
        """Learns from the scale seen how large the unknown part of the history can be."""
        implied = np.where((scale > 0) & np.isfinite(scale), self._top / scale, np.nan)
        told = mine & ~np.isnan(implied)
        fresh = told & np.isnan(self.unknown)
        bound = np.fmin(self.unknown, implied)
        hidden = (self.unknown > 0) & (implied <= self._known * (1 + 1e-3))
        if hidden.any():
            # An amax logged after all unknown ones outlives them. One from before a gap does not: what the
            # gap hides below it comes to light when it leaves the window.
            later = self.stair_pass >= np.maximum(self.count - self._history, self.born)
            newest = np.where(later, self.stair_value, 0.0).max(axis=0)
            bound = np.where(hidden & (implied <= newest * (1 + 1e-3)), 0.0, bound)
        if fresh.any():
            self.born = np.where(fresh, self.count, self.born)
            bound = np.where(fresh, implied, bound)
        self.unknown = np.where(told, bound, self.unknown)

    def _roll(self, mine: Bool, columns: Columns, amax: Float64, passes: int) -> None:
        """Adds this step's amax to the staircase:

        smaller newer entries stay, entries at most as large are replaced.
        """
        rolls = mine & (amax != 0)  # NaN rolls too: the history advances, the maximum drops it
        value = np.where(np.isnan(amax), 0.0, np.abs(amax))
        put = rolls & (value > 0)
        # Values descend along the staircase, so those that stay are a prefix; entries that have left the
        # window stay in front until the room is needed.
        stays = self.stair_value > value
        if stays[-1].any():
            self._compact(np.flatnonzero(put & stays[-1]), columns)
            stays = self.stair_value > value
        place = stays.view(np.int8).sum(axis=0, dtype=np.int8)
        # An emptied entry has the value 0 and so counts nowhere; its pass is overwritten with the next one.
        keeps = stays | ~put
        self.stair_value = np.where(keeps, self.stair_value, 0.0)
        # A full staircase: the newest entry is merged into the last one, whose value becomes an upper bound.
        column = np.flatnonzero(put)
        at = place[column].astype(np.int64)
        slot = np.minimum(at, STAIRS - 1)
        merged = at >= STAIRS
        self.stair_pass[slot, column] = self.count[column] + passes - 1
        if merged.any() or self.stair_loose.any():
            self.stair_loose &= keeps
            self.stair_loose[slot, column] = merged
            self.stair_value[slot[~merged], column[~merged]] = value[column[~merged]]
        else:
            self.stair_value[slot, column] = value[column]
        self.count = self.count + passes * rolls

    def _compact(self, full: NDArray[np.int64], columns: Columns) -> None:
        """Drops entries that have left the window from the front of the columns ``full``."""
        for i in full.tolist():
            keep = self.stair_pass[:, i] >= self.count[i] - columns.history[i]
            size = int(keep.sum())
            for array, empty in ((self.stair_value, 0.0), (self.stair_pass, -1), (self.stair_loose, False)):
                kept = array[keep, i]
                array[:, i] = empty
                array[:size, i] = kept

    def _expect_recent(self, low: Float64, high: Float64, passes: int) -> None:
        mine = self._mine[DELAYED_RECENT]
        known = ~np.isnan(self.unknown)
        good = (self.last_amax > 0) & np.isfinite(self.last_amax)
        want = np.where(good, np.minimum(self._top / self.last_amax, FLT_MAX), self.last_scale)
        want = np.where(known & ~np.isnan(self.last_amax), want, np.nan)
        if passes > 1:
            want = np.full_like(want, np.nan)
        np.copyto(low, want, where=mine)
        np.copyto(high, want, where=mine)

    def state(self) -> dict[str, Any]:
        return {**{name: getattr(self, name) for name in self.ARRAYS}, "last": self._last}

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> ShadowScale:
        shadow = cls(len(state["count"]))
        for name in cls.ARRAYS:
            setattr(shadow, name, state[name])
        shadow._last = state["last"]
        return shadow
