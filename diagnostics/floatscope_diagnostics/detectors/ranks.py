"""Invariant over ranks: what was equal on all ranks stays equal.

Data-parallel ranks hold the same weights and, with a reduced amax, use the same scales. Whether a tensor is
shared is learned: it must have been equal on all ranks for EQUAL_ROWS rows. A step is judged when all ranks
have sent it, those that the run declares and those seen, or one of them is WAIT_STEPS steps ahead; until then
only its extremes over the ranks are kept. Ranks that resume from a checkpoint take steps again: each counts
how often it did, its epoch, so that what one rank took again is not held against what another took before.
Signals: ``weights_part`` (weight amax, update or parameter norm), ``scales_part``; those of hashes, see
``rank_hashes``; and, by level, ``rank_outlier`` (a rank's gradient norm before the reduction). The shadow
scale of the reduced amax gives the signals of ``scale_state`` here, since one rank alone cannot know it; only
steps that every rank has sent count for it, and only under delayed scaling: other recipes scale by what each
rank holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.columns import ROLE_CODES, Columns
from floatscope_diagnostics.detectors.level import Level
from floatscope_diagnostics.detectors.rank_hashes import HashBoard, Reading, reading_of
from floatscope_diagnostics.detectors.row import StatRow
from floatscope_diagnostics.detectors.scale_state import ScaleState
from floatscope_diagnostics.episodes import EpisodeLog, Symptom
from floatscope_diagnostics.frame import Frame, bare_frame

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]
Place = tuple[int, int]  # epoch and step

WAIT_STEPS = 64  # the design's limit for a rank that lags
EQUAL_ROWS = 8
PART_ROWS = 2  # rows apart before it counts
TOLERANCE = 1e-3  # relative; logs print five digits, real parting grows from step to step
_REDUCED = ("fp8_delayed_scaling", None)  # None: not declared, and then the scales decide
_PENDING = ("segment", "first_rank", "low", "high", "finite", "scale")
_KEPT = ("scale", "amax", "update_ratio")
_PLAIN = (
    "begun", "seen_far", "epoch_begun", "left", "norm_equal", "norm_apart", "rows", "epoch", "local_rows",
    "local_since",
)  # fmt: skip
_NORM = "param_norm"
_LOCAL = "local_grad_norm"
LOCAL_READY_ROWS = 16
LOCAL_LOG2 = 2.0  # a rank's own gradient norm away from the others' beyond their usual spread; batches differ
LOCAL_ROWS = 4


@dataclass(slots=True)
class _Pending:
    """One step of the ranks that have sent it.

    low, high: float32 (stats, tensors), extremes over the ranks, NaN where any has none.  finite: (tensors,),
    scale and amax are on all.  scale: (tensors,) of the first rank.  norms, local, hashes: by rank.
    """

    segment: int
    first_rank: int
    low: Float32
    high: Float32
    finite: NDArray[np.bool_]
    scale: Float32
    norms: dict[int, float] = field(default_factory=dict)
    local: dict[int, float] = field(default_factory=dict)
    hashes: dict[int, Reading] = field(default_factory=dict)

    def widen(self, size: int) -> None:
        """Room for tensors that appeared since; nothing is known of them here."""
        extra = size - self.low.shape[1]
        if extra > 0:
            blank = np.full((len(_KEPT), extra), np.nan, np.float32)
            self.low, self.high = np.hstack([self.low, blank]), np.hstack([self.high, blank])
            self.scale = np.concatenate([self.scale, blank[0]])
            self.finite = np.concatenate([self.finite, np.zeros(extra, bool)])


class RankBoard:
    """Steps that wait for the other ranks, and how often each tensor agreed."""

    def __init__(self) -> None:
        self.waiting: dict[Place, _Pending] = {}
        self.newest: dict[int, Place] = {}  # last epoch and step by rank
        self.begun: int | None = None  # first step of all
        self.seen_far = False  # WAIT_STEPS steps beyond it
        self.epoch_begun = 0  # first step of the newest epoch
        self.left = 0  # last step of the one before
        self.equal: Int32 = np.zeros((len(_KEPT), 0), np.int32)
        self.apart: Int32 = np.zeros((len(_KEPT), 0), np.int32)
        self.scales = ScaleState()
        self.hashes = HashBoard()
        self.local = Level(0.25)
        self.local_rows = 0
        self.local_since = 0
        self.norm_equal = 0
        self.norm_apart = 0
        self.rows = 0
        self.judged: Place | None = None
        self.epoch = 0  # of the last step compared
        self.log = EpisodeLog()

    def recipe_changed(self) -> None:
        """Another recipe from here on: what the scales should be must be learned anew."""
        self.scales.seam()

    def add(
        self,
        rank: int,
        step: int,
        segment: int,
        frame: Frame | None,
        d: int | None,
        scalars: Mapping[str, float],
        columns: Columns,
    ) -> None:
        """Takes one row of one rank and judges every step that is complete."""
        if self._alone(rank, columns):
            self.judged = self._place(rank, step, resumed=scalars.get("resumed", 0.0) == 1.0)
            return
        size = len(columns)
        values = np.full((len(_KEPT), size), np.nan, np.float32)
        if frame is not None and d is not None:
            weight = columns.role == ROLE_CODES["weight"]
            for k, stat in enumerate(_KEPT):
                got = frame.row(stat, d)
                if got is not None:
                    values[k] = got if k <= 1 else np.where(weight, got, np.nan)
        place = self._place(rank, step, resumed=scalars.get("resumed", 0.0) == 1.0)
        if self.judged is None or place > self.judged:
            self._merge(rank, place, segment, values, scalars)
        self._judge(columns)

    def pass_to(self, rank: int, step: int) -> None:
        """The rank, alone so far, has gone on to ``step``; nothing is compared on the way."""
        if rank in self.newest and not self.waiting:
            place = (self.newest[rank][0], step)
            self.newest[rank], self.judged = place, place

    def knows_others(self, rank: int) -> bool:
        """Whether a rank besides this one has sent rows."""
        return any(r != rank for r in self.newest)

    def _alone(self, rank: int, columns: Columns) -> bool:
        """Whether nobody is waited for: no other rank has shown up within WAIT_STEPS steps."""
        expected = columns.run.ranks is not None and columns.run.ranks > 1
        return self.seen_far and not self.waiting and not expected and not self.knows_others(rank)

    def _place(self, rank: int, step: int, *, resumed: bool) -> Place:
        """Epoch and step of a rank's next row.

        A rank that lost its last steps resumes without going back; if it does not say so either, it shows by
        going where nobody was before.
        """
        top = max((epoch for epoch, _ in self.newest.values()), default=0)
        epoch, last = self.newest.get(rank, (0, step - 1))
        if rank in self.newest and (step <= last or resumed):
            epoch += 1
        elif epoch < top and step > self.left + WAIT_STEPS:
            epoch = top
        if epoch > top:
            self.epoch_begun, self.left = step, max(s for e, s in self.newest.values() if e == top)
            self.waiting = {place: held for place, held in self.waiting.items() if place[0] == top}
        self.newest[rank] = (epoch, step)
        self.begun = step if self.begun is None else min(self.begun, step)
        self.seen_far = self.seen_far or step - self.begun >= WAIT_STEPS
        return epoch, step

    def _merge(
        self, rank: int, place: Place, segment: int, values: Float32, scalars: Mapping[str, float]
    ) -> None:
        finite = np.isfinite(values[0]) & np.isfinite(values[1])
        held = self.waiting.get(place)
        if held is None:
            held = _Pending(segment, rank, values.copy(), values.copy(), finite, values[0])
            self.waiting[place] = held
        else:
            held.widen(values.shape[1])
            held.low = np.minimum(held.low, values)
            held.high = np.maximum(held.high, values)
            held.finite = held.finite & finite
            if rank < held.first_rank:
                held.first_rank, held.scale, held.segment = rank, values[0], segment
        held.norms[rank] = scalars.get(_NORM, np.nan)
        held.local[rank] = scalars.get(_LOCAL, np.nan)
        reading = reading_of(scalars)
        if reading is not None:
            held.hashes[rank] = reading

    def _judge(self, columns: Columns) -> None:
        declared = columns.run.ranks
        wanted = max(declared or 1, len(self.newest))
        if declared is None and not self.seen_far:
            return  # how many ranks there are shows only when the first have gone ahead
        while self.waiting:
            place = min(self.waiting)
            complete = len(self.waiting[place].norms) >= wanted
            if not complete and not self._is_late(place, wanted):
                return
            held = self.waiting.pop(place)
            held.widen(len(columns))
            self.judged = place
            if len(held.norms) > 1:
                self._compare(place, held, columns, complete=complete)

    def _is_late(self, place: Place, wanted: int) -> bool:
        """Whether no rank is waited for any longer at this place."""
        epoch, step = place
        top, newest = max(self.newest.values())
        if top == epoch:
            return newest - step >= WAIT_STEPS
        if newest - self.epoch_begun >= WAIT_STEPS:
            return True
        return len(self.newest) >= wanted and min(self.newest.values()) > place

    def _compare(self, place: Place, held: _Pending, columns: Columns, *, complete: bool) -> None:
        self._resize(len(columns))
        epoch, step = place
        segment = held.segment
        if epoch != self.epoch:  # the ranks went back: the amaxes seen are not the restored history's
            self.epoch = epoch
            self.scales.seam()
            self.hashes.went_back()
            self.log.seam()
        index = self.rows
        self.rows += 1
        low, high = held.low.astype(np.float64), held.high.astype(np.float64)
        with np.errstate(all="ignore"):
            spread = high / low - 1.0
        known = ~np.isnan(low) & np.isfinite(spread)
        known[1] &= columns.role == ROLE_CODES["weight"]  # activations differ between ranks
        if complete:
            self._shadow(step, segment, index, held, columns)
        same = known & (spread <= TOLERANCE)
        shared = self.equal >= EQUAL_ROWS
        self.apart = np.where(known & shared & ~same, self.apart + 1, np.where(same, 0, self.apart)).astype(
            np.int32
        )
        self.equal = np.where(same, self.equal + 1, np.where(known & ~shared, 0, self.equal)).astype(np.int32)
        parted = (self.apart[1] >= 1) | (self.apart[2] >= 1)
        proven = bool((self.apart[1:] >= PART_ROWS).any())
        norm = np.array(list(held.norms.values()))
        if not np.isnan(norm).any() and np.isfinite(norm).all() and norm.min() > 0:
            off = norm.max() / norm.min() - 1.0 > 1e-6
            if off and self.norm_equal >= EQUAL_ROWS:
                self.norm_apart += 1
                proven = proven or self.norm_apart >= PART_ROWS
            else:
                self.norm_apart = 0
                self.norm_equal = 0 if off else self.norm_equal + 1
        if parted.any() or self.norm_apart >= 1:
            values = np.nan_to_num(np.fmax(spread[1], spread[2]))
            self.log.hit(
                "weights_part",
                step=step,
                row=index,
                segment=segment,
                mask=parted,
                values=values,
                proven=proven,
            )
        if (self.apart[0] >= 1).any():
            self.log.hit(
                "scales_part",
                step=step,
                row=index,
                segment=segment,
                mask=self.apart[0] >= 1,
                values=np.nan_to_num(spread[0]),
                proven=bool((self.apart[0] >= PART_ROWS).any()),
            )
        self.hashes.compare(held.hashes, self.log, step=step, row=index, segment=segment)
        self._local(step, segment, index, held.local)
        self.log.close(row=index)

    def _shadow(self, step: int, segment: int, index: int, held: _Pending, columns: Columns) -> None:
        """The scale that the amaxes of all ranks together give, where the recipe reduces them."""
        recipe = columns.run.recipe
        if recipe.get("reduce_amax") is False or recipe.get("name") not in _REDUCED:
            return
        table = {"scale": held.scale[None], "amax": held.high[1][None]}
        frame = bare_frame(step, table, len(columns))
        row = StatRow(
            step=step,
            index=index,
            segment=segment,
            frame=frame,
            d=0,
            scalars={},
            columns=columns,
            log=self.log,
        )
        self.scales.step(row, broken=~held.finite)

    def _local(self, step: int, segment: int, index: int, by_rank: Mapping[int, float]) -> None:
        """One rank's gradient before the reduction is out of line with the others, step after step."""
        ranks = sorted(by_rank)
        norms = np.array([by_rank[r] for r in ranks])
        if not (np.isfinite(norms).all() and (norms > 0).all()):
            return
        logs = np.log2(norms)
        away = logs - np.sort(logs)[(len(logs) - 1) // 2]
        spread = float(np.ptp(logs))
        beyond = self.local.away(spread)
        if self.local.count < LOCAL_READY_ROWS or beyond <= max(LOCAL_LOG2, 6 * self.local.sigma()):
            self.local_rows = 0
            self.local.update(spread)
            return
        self.local_since = step if self.local_rows == 0 else self.local_since
        self.local_rows += 1
        if self.local_rows >= LOCAL_ROWS:
            worst = int(np.argmax(np.abs(away)))
            self.log.hit(
                "rank_outlier",
                step=step,
                row=index,
                segment=segment,
                values=beyond,
                onset=self.local_since,
                expected=self.local.center,
                gap_rows=3,
                extra={"rank": float(ranks[worst])},
            )

    def _resize(self, size: int) -> None:
        for name in ("equal", "apart"):
            old = getattr(self, name)
            if old.shape[1] < size:
                new = np.zeros((len(_KEPT), size), np.int32)
                new[:, : old.shape[1]] = old
                setattr(self, name, new)

    def symptoms(self, columns: Columns) -> list[Symptom]:
        return self.log.symptoms(columns, rank=-1, row=self.rows)

    def state(self) -> dict[str, Any]:
        waiting = [
            {
                "place": list(place),
                "norms": [[rank, x] for rank, x in sorted(p.norms.items())],
                "local": [[rank, x] for rank, x in sorted(p.local.items())],
                "hashes": [[rank, list(x)] for rank, x in sorted(p.hashes.items())],
                **{name: getattr(p, name) for name in _PENDING},
            }
            for place, p in sorted(self.waiting.items())
        ]
        plain = {name: getattr(self, name) for name in _PLAIN}
        return {
            "waiting": waiting,
            "newest": [[rank, *place] for rank, place in sorted(self.newest.items())],
            "judged": None if self.judged is None else list(self.judged),
            "equal": self.equal,
            "apart": self.apart,
            "plain": plain,
            "scales": self.scales.state(),
            "hashes": self.hashes.state(),
            "local": self.local.state(),
            "log": self.log.state(),
        }

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> RankBoard:
        out = cls()
        for saved in state["waiting"]:
            norms, local = ({int(r): float(x) for r, x in saved[name]} for name in ("norms", "local"))
            fields = {name: saved[name] for name in _PENDING}
            hashes = {int(r): tuple(float(x) for x in read) for r, read in saved["hashes"]}
            out.waiting[_loaded(saved["place"])] = _Pending(**fields, norms=norms, local=local, hashes=hashes)
        out.newest = {int(rank): (int(epoch), int(step)) for rank, epoch, step in state["newest"]}
        out.judged = None if state["judged"] is None else _loaded(state["judged"])
        out.equal, out.apart = state["equal"], state["apart"]
        for name, value in state["plain"].items():
            setattr(out, name, value)
        out.scales = ScaleState.load(state["scales"])
        out.hashes = HashBoard.load(state["hashes"])
        out.local.load(state["local"])
        out.log = EpisodeLog.load(state["log"])
        return out


def _loaded(saved: Sequence[int]) -> Place:
    epoch, step = saved
    return int(epoch), int(step)
