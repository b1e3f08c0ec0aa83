"""Symptoms and the log that gathers them: one entry for a stretch of steps in which one signal misbehaves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.columns import Columns

Bool = NDArray[np.bool_]

MAX_EPISODES_PER_SIGNAL = 48  # a signal that comes and goes forever must not fill the state
SETTLING_ROWS = 2  # a fault crosses the network inside two rows; what it reaches then is its first extent
TOTAL = "total_"  # extra numbers whose name begins so are added up over the episode; others keep the newest


@dataclass(frozen=True)
class Symptom:
    """One stretch of steps in which a signal misbehaved on one rank.

    onset: step of the first sign.  detected: step whose data proved it, None while only suspected.  last:
    last such step. rows: judged rows with the sign.  rows_after: judged rows since the onset, so far.  open:
    still going on at the last row. tensors: all affected, first cause first.  first: those of the first step.
    peak, value: worst and first number, ``second`` the worst of all rows but the peak's (-inf: there is
    none), ``expected`` what was normal.  extra: further numbers the detector has, by name.  settled,
    settled_peak, settled_rows: tensors, peak and rows when it was proven and SETTLING_ROWS later.
    """

    signal: str
    rank: int
    segment: int
    onset: int
    detected: int | None
    last: int
    rows: int
    rows_after: int
    open: bool
    tensors: tuple[str, ...]
    first: tuple[str, ...]
    value: float
    peak: float
    peak_step: int
    peak_tensor: str | None
    expected: float | None
    extra: Mapping[str, float]
    second: float = -math.inf
    settled: tuple[str, ...] = ()
    settled_peak: float = 0.0
    settled_rows: int = 0

    @property
    def tensor(self) -> str | None:
        return self.first[0] if self.first else None

    def at(self, step: int) -> Symptom:
        """The symptom as it was known after a step: not proven yet, or as it was proven."""
        if self.detected is None or self.detected > step:
            return replace(self, detected=None)
        return replace(
            self,
            tensors=self.settled,
            peak=self.settled_peak,
            second=min(self.second, self.settled_peak),
            rows=self.settled_rows,
            last=min(self.last, max(step, self.detected)),
            open=True,
        )


@dataclass(slots=True)
class _Episode:
    signal: str
    segment: int
    onset: int
    first_row: int
    detected: int | None
    last: int
    last_row: int
    rows: int
    value: float
    peak: float
    peak_step: int
    peak_column: int
    expected: float | None
    members: Bool
    at_onset: Bool
    settled: Bool
    settled_peak: float = 0.0
    settled_rows: int = 0
    proof_row: int = -1
    gap_rows: int = 1
    open: bool = True
    extra: dict[str, float] = field(default_factory=dict)
    second: float = -math.inf


class EpisodeLog:
    """Bounded list of episodes by signal, fed row by row."""

    def __init__(self) -> None:
        self._by_signal: dict[str, list[_Episode]] = {}
        self.dropped: dict[str, int] = {}

    def hit(
        self,
        signal: str,
        *,
        step: int,
        row: int,
        segment: int,
        mask: Bool | None = None,
        values: NDArray[np.floating[Any]] | float = 1.0,
        expected: float | None = None,
        proven: bool = True,
        onset: int | None = None,
        gap_rows: int = 1,
        extra: Mapping[str, float] | None = None,
    ) -> None:
        """Notes that ``signal`` misbehaves at this step, on the tensors of ``mask`` (S,) or on the whole run.

        values: (S,) or one number, larger is worse.  onset: first sign, where it is earlier than this step.
        gap_rows: rows without the sign that do not end the episode.  proven: False while it is only
        suspected.
        """
        members = np.zeros(0, bool) if mask is None else mask
        worst, column = _worst(values, mask)
        episode = self._open(signal, row=row, segment=segment)
        if episode is None:
            episode = _Episode(
                signal=signal,
                segment=segment,
                onset=step if onset is None else onset,
                first_row=row,
                detected=None,
                last=step,
                last_row=row,
                rows=0,
                value=worst,
                peak=worst,
                peak_step=step,
                peak_column=column,
                expected=expected,
                members=members.copy(),
                at_onset=members.copy(),
                settled=members[:0].copy(),
            )
            self._append(episode)
        elif not np.isnan(worst):
            episode.second = max(episode.second, worst if worst <= episode.peak else episode.peak)
        episode.rows += 1
        episode.gap_rows = gap_rows
        episode.last, episode.last_row = step, row
        if proven and episode.detected is None:
            episode.detected, episode.proof_row = step, row
        if worst > episode.peak or (np.isnan(episode.peak) and not np.isnan(worst)):
            episode.peak, episode.peak_step, episode.peak_column = worst, step, column
        episode.members = _union(episode.members, members)
        if episode.detected is not None and row <= episode.proof_row + SETTLING_ROWS:
            episode.settled = episode.members.copy()
            episode.settled_peak, episode.settled_rows = episode.peak, episode.rows
        for name, number in (extra or {}).items():
            before = episode.extra.get(name, 0.0) if name.startswith(TOTAL) else 0.0
            episode.extra[name] = before + number

    def close(self, *, row: int) -> None:
        """Ends episodes that had no sign for more rows than their signal allows."""
        for episodes in self._by_signal.values():
            last = episodes[-1]
            if last.open and row - last.last_row > last.gap_rows:
                last.open = False

    def seam(self) -> None:
        """A new segment begins: nothing goes on across it."""
        for episodes in self._by_signal.values():
            episodes[-1].open = False

    def is_open(self, signal: str, *, row: int | None = None) -> bool:
        """Whether the signal's last episode goes on; with ``row``, whether a sign there would join it."""
        episodes = self._by_signal.get(signal)
        if not episodes or not episodes[-1].open:
            return False
        last = episodes[-1]
        return row is None or row - last.last_row <= last.gap_rows + 1

    def symptoms(self, columns: Columns, *, rank: int, row: int) -> list[Symptom]:
        """All proven or suspected episodes as frozen symptoms, in order of onset."""
        out = []
        for episodes in self._by_signal.values():
            for e in episodes:
                members = columns.ordered(e.members)
                first = columns.ordered(e.at_onset)
                out.append(
                    Symptom(
                        signal=e.signal,
                        rank=rank,
                        segment=e.segment,
                        onset=e.onset,
                        detected=e.detected,
                        last=e.last,
                        rows=e.rows,
                        rows_after=row - e.first_row,
                        open=e.open,
                        tensors=tuple(columns.names[i] for i in members),
                        first=tuple(columns.names[i] for i in first),
                        value=e.value,
                        peak=e.peak,
                        peak_step=e.peak_step,
                        peak_tensor=columns.names[e.peak_column] if e.peak_column >= 0 else None,
                        expected=e.expected,
                        extra=dict(e.extra),
                        second=e.second,
                        settled=tuple(columns.names[i] for i in columns.ordered(e.settled)),
                        settled_peak=e.settled_peak,
                        settled_rows=e.settled_rows,
                    )
                )
        return sorted(out, key=lambda s: (s.segment, s.onset, s.signal))

    def state(self) -> dict[str, Any]:
        return {
            "episodes": [_save(e) for episodes in self._by_signal.values() for e in episodes],
            "dropped": dict(self.dropped),
        }

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> EpisodeLog:
        log = cls()
        for saved in state["episodes"]:
            episode = _load(saved)
            log._by_signal.setdefault(episode.signal, []).append(episode)
        log.dropped = {str(k): int(v) for k, v in state["dropped"].items()}
        return log

    def _open(self, signal: str, *, row: int, segment: int) -> _Episode | None:
        episodes = self._by_signal.get(signal)
        if not episodes:
            return None
        last = episodes[-1]
        if not last.open or last.segment != segment or row - last.last_row > last.gap_rows + 1:
            last.open = False
            return None
        return last

    def _append(self, episode: _Episode) -> None:
        episodes = self._by_signal.setdefault(episode.signal, [])
        if episodes and episodes[-1].detected is None:
            episodes.pop()  # a suspicion that was never proven is forgotten when the next one begins
        if len(episodes) >= MAX_EPISODES_PER_SIGNAL:
            # The first ones tell the cause, the last ones the state.
            del episodes[MAX_EPISODES_PER_SIGNAL // 2]
            self.dropped[episode.signal] = self.dropped.get(episode.signal, 0) + 1
        episodes.append(episode)


def _worst(values: NDArray[np.floating[Any]] | float, mask: Bool | None) -> tuple[float, int]:
    """Largest value under the mask and its column; (value, -1) for a number. NaN only when all are."""
    if not isinstance(values, np.ndarray):
        return float(values), -1
    inside = np.where(mask, values, -np.inf) if mask is not None else values
    inside = np.where(np.isnan(inside), -np.inf, inside)
    column = int(np.argmax(inside))
    number = float(values[column])
    return number, column


def _union(a: Bool, b: Bool) -> Bool:
    if len(a) == len(b):
        return a | b
    wide = np.zeros(max(len(a), len(b)), bool)
    wide[: len(a)] |= a
    wide[: len(b)] |= b
    return wide


_MASKS = ("members", "at_onset", "settled")


def _save(e: _Episode) -> dict[str, Any]:
    out = {k: getattr(e, k) for k in _Episode.__dataclass_fields__}
    for key in _MASKS:
        mask = out[key]
        out[key] = {"bits": np.packbits(mask), "size": len(mask)}
    return out


def _load(saved: Mapping[str, Any]) -> _Episode:
    fields = dict(saved)
    for key in _MASKS:
        packed = fields[key]
        fields[key] = np.unpackbits(packed["bits"], count=packed["size"]).astype(bool)
    return _Episode(**fields)
