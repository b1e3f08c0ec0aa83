"""Ranks compared by hash: those that held the same bits must go on doing so.

``param_hash`` is a hash of the weights that a step's forward pass used, ``scale_hash`` one of the FP8 scales,
both whole numbers. Ranks are comparable if their coordinates along which weights are split (tensor,
pipeline, expert parallel) are the same or unknown. Which of them hold the same bits is learned: a single
equal hash is no accident. Signals: ``hashes_part`` and ``scale_hashes_part``, with the rank that left the
others or -1 where none is in the majority; ``hashes_never_equal`` where data-parallel ranks were apart from
the start.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from floatscope_diagnostics.episodes import EpisodeLog

SIGNALS = {"param_hash": "hashes_part", "scale_hash": "scale_hashes_part"}
SPLITTING = ("tp_rank", "pp_rank", "ep_rank")
NEVER_EQUAL = "hashes_never_equal"
NEVER_ROWS = 2

HASHED = (*SIGNALS, *SPLITTING, "dp_rank")
"""Scalars that a comparison needs, in the order of a reading."""

Reading = tuple[float, ...]
Key = tuple[str, float, float, float]


def reading_of(scalars: Mapping[str, float]) -> Reading | None:
    """What one row says of its rank's hashes, None if it has none."""
    if not any(name in scalars for name in SIGNALS):
        return None
    return tuple(scalars.get(name, math.nan) for name in HASHED)


@dataclass(slots=True)
class _Set:
    """Ranks that once had the same hash.

    last_equal: the last step on which all that were there had it.  after: the step the ranks have sent next.
    """

    ranks: set[int]
    last_equal: int = -1
    after: int = -1


class HashBoard:
    """What is known of the ranks' hashes."""

    def __init__(self) -> None:
        self._sets: dict[Key, list[_Set]] = {}
        self._apart: dict[Key, int] = {}
        self._last_row = -1

    def went_back(self) -> None:
        """The ranks go on from an earlier step."""
        for sets in self._sets.values():
            for one in sets:
                one.last_equal = one.after = -1

    def compare(
        self, readings: Mapping[int, Reading], log: EpisodeLog, *, step: int, row: int, segment: int
    ) -> None:
        """Judges one step of the ranks that have sent it.

        readings: by rank.  row: how many steps were compared before.
        """
        for sets in self._sets.values():
            for one in sets:
                if one.last_equal >= 0 and one.after < 0:
                    one.after = step
        found: dict[Key, dict[int, float]] = {}
        placed: set[Key] = set()
        for rank, reading in sorted(readings.items()):
            tp, pp, ep, dp = (-1.0 if math.isnan(at) else at for at in reading[len(SIGNALS) :])
            for name, value in zip(SIGNALS, reading, strict=False):
                if not math.isnan(value):
                    key = (name, tp, pp, ep)
                    found.setdefault(key, {})[rank] = value
                    if dp >= 0:
                        placed.add(key)
        gap = max(2 * (row - self._last_row), 2) if self._last_row >= 0 else 2
        if found:
            self._last_row = row
        for key, hashes in sorted(found.items()):
            if len(hashes) < 2:
                continue
            sets = self._sets.setdefault(key, [])
            _learn(sets, hashes)
            for one in sets:
                self._judge(one, key[0], hashes, log, step=step, row=row, segment=segment, gap=gap)
            if key in placed and key[0] == "param_hash":
                self._judge_start(key, hashes, log, step=step, row=row, segment=segment, gap=gap)

    def _judge(
        self,
        one: _Set,
        name: str,
        hashes: Mapping[int, float],
        log: EpisodeLog,
        *,
        step: int,
        row: int,
        segment: int,
        gap: int,
    ) -> None:
        here = {rank: hashes[rank] for rank in one.ranks if rank in hashes}
        if len(here) < 2:
            return
        if len(set(here.values())) == 1:
            one.last_equal, one.after = step, -1
            return
        odd = _odd_ranks(here)
        log.hit(
            SIGNALS[name],
            step=step,
            row=row,
            segment=segment,
            values=float(len(odd)) if odd else float(len(here)),
            onset=one.after if one.last_equal >= 0 else step,
            gap_rows=gap,
            extra={"rank": float(odd[0]) if odd else -1.0, "last_equal": float(one.last_equal)},
        )

    def _judge_start(
        self,
        key: Key,
        hashes: Mapping[int, float],
        log: EpisodeLog,
        *,
        step: int,
        row: int,
        segment: int,
        gap: int,
    ) -> None:
        if sum(bool(one.ranks & set(hashes)) for one in self._sets[key]) < 2:
            self._apart[key] = 0
            return
        self._apart[key] = self._apart.get(key, 0) + 1
        if self._apart[key] >= NEVER_ROWS:
            apart = float(len(set(hashes.values())))
            log.hit(NEVER_EQUAL, step=step, row=row, segment=segment, values=apart, gap_rows=gap)

    def state(self) -> dict[str, Any]:
        """For ``load``."""
        return {
            "sets": [
                [list(key), [[sorted(one.ranks), one.last_equal, one.after] for one in sets]]
                for key, sets in sorted(self._sets.items())
            ],
            "apart": [[list(key), count] for key, count in sorted(self._apart.items())],
            "last_row": self._last_row,
        }

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> HashBoard:
        """The board again."""
        out = cls()
        for key, sets in state["sets"]:
            out._sets[_key(key)] = [
                _Set({int(r) for r in ranks}, int(last), int(after)) for ranks, last, after in sets
            ]
        out._apart = {_key(key): int(count) for key, count in state["apart"]}
        out._last_row = int(state["last_row"])
        return out


def _key(saved: Any) -> Key:
    name, tp, pp, ep = saved
    return str(name), float(tp), float(pp), float(ep)


def _learn(sets: list[_Set], hashes: Mapping[int, float]) -> None:
    """Puts ranks that have one hash now into one set. Sets only grow: ranks that part stay in theirs."""
    known = {rank for one in sets for rank in one.ranks}
    sets += [_Set({rank}) for rank in hashes if rank not in known]
    by_hash: dict[float, _Set] = {}
    for one in list(sets):
        values = {hashes[rank] for rank in one.ranks if rank in hashes}
        if len(values) != 1:
            continue
        twin = by_hash.setdefault(values.pop(), one)
        if twin is not one:
            twin.ranks |= one.ranks
            if one.last_equal > twin.last_equal:
                twin.last_equal, twin.after = one.last_equal, one.after
            sets.remove(one)


def _odd_ranks(hashes: Mapping[int, float]) -> list[int]:
    """Ranks that do not have the hash of the majority; none where there is no majority."""
    values = list(hashes.values())
    most = max(sorted(set(values)), key=values.count)
    if 2 * values.count(most) <= len(values):
        return []
    return [rank for rank, value in sorted(hashes.items()) if value != most]
