"""Which rows of a very long run the row-by-row detectors look at.

A run of a million rows is quiet nearly everywhere, and a detector that sees a quiet row only moves its level.
So beyond LONG_ROWS a row is judged by itself only if it stands out, lies shortly before or behind one that
does, or is every THIN_ROWS-th; what the levels missed is handed to them as means (``passed_rows``).
Whether a row stands out is computed for whole columns (``row_marks``), against a spread that is frozen at the
last border of a block. It depends on the rows before it alone, so any cut into batches gives the same choice.

What can no longer be seen in the thinned part: three equal losses hidden among rows of few digits, a sum of
rises each below NOTICE that is spread over more than a hundred rows, and the exact row of a slow climb's
lowest point (known to THIN_ROWS rows). Rows counted by an episode are judged rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.batch import Batch
from floatscope_diagnostics.detectors.passed_rows import Passed
from floatscope_diagnostics.frame import rows_at
from floatscope_diagnostics.row_marks import CONTEXT_ROWS, SERIES, Columns, marks, series_of

Bool = NDArray[np.bool_]
Float64 = NDArray[np.float64]

LONG_ROWS = 8_192  # every row of a shorter run is judged
BLOCK_ROWS = 1_024  # the spread of a series is taken from the block before
SAMPLE_EVERY = 8  # rows; 128 of a block are enough for its spread
SAMPLES = BLOCK_ROWS // SAMPLE_EVERY
ONE_SIGMA = 87  # place among 128 sorted absolute values of a normal's standard deviation: 68.3 %
THIN_ROWS = 256
LOOK_BACK_ROWS = 16  # sums and counts begin a little before they prove anything
NOTICE_ROWS = 32  # behind a row that might matter; longer than any count of rows in ``run_changes``
WATCH_ROWS = 128  # behind one that does: whether it comes back


@dataclass(frozen=True)
class ChosenRow:
    """A row to judge.

    gap: steps since the row before it, judged or not.  passed: the rows before it that were passed over.
    """

    step: int
    scalars: dict[str, float]
    gap: int | None
    passed: Passed | None


class QuietRows:
    """The choice for one rank.

    total: rows so far.  seen: those of this segment that were looked at.
    """

    def __init__(self) -> None:
        self.total = 0
        self.seam()

    def seam(self) -> None:
        """A new segment begins; its first block is judged row by row."""
        self.seen = 0
        self._until = 0  # rows seen below this one are judged
        self._last = -1  # the last judged, as counted by ``seen``
        self._before = Columns.blank()
        self._judged: Bool = np.ones(CONTEXT_ROWS, bool)
        self._limits: dict[str, float] = {}
        self._samples: dict[str, Float64] = {}

    def unseen(self) -> int:
        """So many rows are still to be judged without a look at them."""
        return max(0, LONG_ROWS - 3 * BLOCK_ROWS - self.total)

    def choose(self, batch: Batch, vocab_size: int | None) -> list[ChosenRow]:
        """The rows to judge now, in order, some of them of the batch before. Steps of the batch ascend."""
        count = len(batch)
        columns = self._before.followed_by(Columns.of(batch))
        series = {name: series_of(name, columns) for name in SERIES if name in columns.present}
        spread = self._spreads(series, count)
        number = self.seen + np.arange(count)
        watch, notice, alone = marks(columns, series, spread, vocab_size)
        behind = np.where(watch, number + WATCH_ROWS + 1, np.where(notice, number + NOTICE_ROWS + 1, 0))
        until = np.maximum.accumulate(np.concatenate([[self._until], behind]))[1:]
        young = (self.total + np.arange(count) < LONG_ROWS) | (number < BLOCK_ROWS)
        chosen = _looking_back(watch | notice)
        chosen[CONTEXT_ROWS:] |= young | (number < until) | alone | (number % THIN_ROWS == 0)
        chosen[:CONTEXT_ROWS] &= ~self._judged
        index = np.flatnonzero(chosen)
        judged = np.concatenate([self._judged, np.zeros(count, bool)]) | chosen
        rows = self._rows(batch, columns, index, judged, series)
        self._until = int(until[-1])
        self._before = columns.last(CONTEXT_ROWS)
        self._judged = judged[-CONTEXT_ROWS:]
        self.seen += count
        self.total += count
        return rows

    def _spreads(self, series: Mapping[str, Any], count: int) -> dict[str, Float64]:
        """Standard deviation around the mean of the rows just before, by series, for each row [context + T].

        Rows of the context get the spread of the first row behind it.
        """
        number = self.seen + np.arange(count)
        sampled = number % SAMPLE_EVERY == SAMPLE_EVERY - 1  # the last sample ends the block
        block = number // BLOCK_ROWS - self.seen // BLOCK_ROWS
        out: dict[str, Float64] = {}
        for name, s in series.items():
            away = np.abs(s.away[CONTEXT_ROWS:])
            away[number < CONTEXT_ROWS] = np.inf  # the means are not full yet
            fresh = self._samples.get(name)
            if fresh is None:  # of a series that appears: the rows before it are no sample
                fresh = np.full(self.seen % BLOCK_ROWS // SAMPLE_EVERY, np.inf)
            samples = np.concatenate([fresh, away[sampled]])
            full = len(samples) // SAMPLES
            blocks = np.sort(samples[: full * SAMPLES].reshape(full, SAMPLES), axis=1)[:, ONE_SIGMA]
            known = np.concatenate([[self._limits.get(name, np.inf)], blocks])
            self._samples[name] = samples[full * SAMPLES :]
            self._limits[name] = float(known[-1])
            # without a spread (a series that has just appeared) the floor must do
            spread = np.maximum(np.where(np.isfinite(known), known, 0.0), SERIES[name].floor)
            rows = spread[np.minimum(block, full)]
            out[name] = np.concatenate([np.full(CONTEXT_ROWS, rows[0]), rows])
        return out

    def _rows(
        self,
        batch: Batch,
        columns: Columns,
        index: NDArray[np.int64],
        judged: Bool,
        series: Mapping[str, Any],
    ) -> list[ChosenRow]:
        old = index[index < CONTEXT_ROWS]
        scalars = [columns.row(int(i)) for i in old]
        scalars += rows_at(batch, index[len(old) :] - CONTEXT_ROWS)
        number = index - CONTEXT_ROWS + self.seen
        before = np.concatenate([[self._last], number[:-1]]) if len(number) else number
        rows = []
        for i, at, last, values in zip(
            index.tolist(), number.tolist(), before.tolist(), scalars, strict=True
        ):
            gap = None if at == 0 else int(columns.step[i] - columns.step[i - 1])
            passed = None
            if not judged[i - 1]:
                passed = Passed(
                    rows=at - last - 1,
                    last=columns.row(i - 1),
                    mean={name: float(s.long[i - 1]) for name, s in series.items()},
                    newest={name: float(s.newest[i - 1]) for name, s in series.items()},
                )
            rows.append(ChosenRow(int(columns.step[i]), values, gap, passed))
        if len(number):
            self._last = int(number[-1])
        return rows

    def state(self) -> dict[str, Any]:
        return {
            "total": self.total,
            "seen": self.seen,
            "until": self._until,
            "last": self._last,
            "judged": self._judged,
            "limits": self._limits,
            "samples": self._samples,
            "before": self._before.state() if self.seen else None,
        }

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> QuietRows:
        out = cls()
        out.total, out.seen = int(state["total"]), int(state["seen"])
        out._until, out._last = int(state["until"]), int(state["last"])
        out._judged = state["judged"]
        out._limits, out._samples = dict(state["limits"]), dict(state["samples"])
        if state["before"] is not None:
            out._before = Columns.load(state["before"])
        return out


def _looking_back(found: Bool) -> Bool:
    """bool [CONTEXT_ROWS + T], the LOOK_BACK_ROWS rows before each row found (bool [T]), and it."""
    at = np.flatnonzero(found) + CONTEXT_ROWS
    edges = np.zeros(CONTEXT_ROWS + len(found) + 1, np.int64)
    np.add.at(edges, at - LOOK_BACK_ROWS, 1)
    np.add.at(edges, at + 1, -1)
    return np.asarray(np.cumsum(edges[:-1]) > 0, bool)
