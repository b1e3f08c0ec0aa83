"""What a rank has logged: at which steps, which statistic of which tensor, how often."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.columns import ROLE_CODES, Columns

Bool = NDArray[np.bool_]

MAX_RUNS = 256  # stretches of evenly spaced steps that are remembered; a regular log is one
MAX_STATS = 32  # kinds of statistics counted
MAX_SCALARS = 512  # scalars counted


class LoggedSteps:
    """The steps of a log as stretches of even spacing; the oldest are forgotten beyond MAX_RUNS."""

    def __init__(self) -> None:
        self._runs: list[list[int]] = []  # segment, first step, spacing (0: one step), last step

    def add(self, segment: int, step: int) -> None:
        """Takes the next logged step, above the last one of its segment."""
        run = self._runs[-1] if self._runs else None
        if run is not None and run[0] == segment:
            gap = step - run[3]
            if run[2] in (0, gap):
                run[2], run[3] = gap, step
                return
        self._runs.append([segment, step, 0, step])
        del self._runs[:-MAX_RUNS]

    def extend(self, segment: int, steps: NDArray[np.int64]) -> None:
        """Takes the next logged steps int64 [N], ascending and above the last one of their segment."""
        at, count = 0, len(steps)
        while at < count:
            self.add(segment, int(steps[at]))
            at += 1
            run = self._runs[-1]
            if at >= count or run[2] == 0:
                continue
            other = np.flatnonzero(np.diff(steps[at - 1 :]) != run[2])  # the stretch ends before these
            end = at + int(other[0]) if len(other) else count
            if end > at:
                run[3] = int(steps[end - 1])
                at = end

    def starts(self) -> dict[int, int]:
        """First logged step of each segment, as far as it is remembered: never below the true one."""
        out: dict[int, int] = {}
        for segment, first, _, _ in self._runs:
            out.setdefault(segment, first)
        return out

    def before(self, segment: int, step: int) -> int | None:
        """Last logged step of this segment below ``step``."""
        return self._last_below([run for run in self._runs if run[0] == segment], step)

    def clean_before(self, segment: int, step: int) -> int | None:
        """Last logged step below ``step`` in this segment, or in the newest one before it that has one."""
        for seg in sorted({run[0] for run in self._runs if run[0] <= segment}, reverse=True):
            found = self.before(seg, step)
            if found is not None:
                return found
        return None

    @staticmethod
    def _last_below(runs: list[list[int]], step: int) -> int | None:
        for _, first, gap, last in reversed(runs):
            if first < step:
                return last if last < step else first + (step - 1 - first) // gap * gap
        return None

    def after(self, segment: int, step: int) -> int | None:
        """First logged step of this segment above ``step``."""
        for seg, first, gap, last in self._runs:
            if seg != segment or last <= step:
                continue
            return first if first > step else first + ((step - first) // gap + 1) * gap
        return None

    def state(self) -> list[list[int]]:
        return [list(run) for run in self._runs]

    @classmethod
    def load(cls, state: list[list[int]]) -> LoggedSteps:
        out = cls()
        out._runs = [[int(v) for v in run] for run in state]
        return out


class Coverage:
    """How often each scalar and statistic was logged, and by which tensors.

    rows: judged steps.  scalars: steps with it, by name.  stats: steps on which any tensor had it.
    tensors: bool (S,) by statistic, whether the tensor ever had it.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.scalars: dict[str, int] = {}
        self.stats: dict[str, int] = {}
        self.tensors: dict[str, Bool] = {}

    def note_scalars(self, names: Sequence[str], present: Bool) -> None:
        """Takes the scalars of steps: K names, bool [N, K]. New ones are counted in order of the steps."""
        self.rows += len(present)
        counts = present.sum(axis=0).tolist()
        fresh = [k for k, n in enumerate(counts) if n and names[k] not in self.scalars]
        if fresh:
            first = present.argmax(axis=0)
            for k in sorted(fresh, key=lambda k: (int(first[k]), k))[: MAX_SCALARS - len(self.scalars)]:
                self.scalars[names[k]] = 0
        for k, n in enumerate(counts):
            if n and names[k] in self.scalars:
                self.scalars[names[k]] += n

    def note_stats(self, present: Mapping[str, Bool]) -> None:
        """Takes a batch's statistics: by name whether the tensor carries it, bool [D, S]."""
        for stat, mask in present.items():
            rows = int(mask.any(axis=1).sum())
            if not rows or (stat not in self.stats and len(self.stats) >= MAX_STATS):
                continue
            self.stats[stat] = self.stats.get(stat, 0) + rows
            seen: Bool = np.array(mask.any(axis=0), bool)
            before = self.tensors.get(stat)
            if before is not None:
                seen[: len(before)] |= before
            self.tensors[stat] = seen

    def every(self, count: int) -> int:
        """So many steps lie between two of ``count``, on average; 1 if nearly every step has it."""
        return max(1, round(self.rows / count)) if count else 0

    def measured_every(self) -> int:
        """So many steps lie between two with statistics of tensors, on average; 1 without any."""
        return max(1, self.every(max(self.stats.values(), default=0)))

    def has(self, stat: str, size: int) -> Bool:
        """bool (size,), whether each tensor ever had the statistic."""
        out = np.zeros(size, bool)
        seen = self.tensors.get(stat)
        if seen is not None:
            out[: len(seen)] = seen
        return out

    def state(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "scalars": dict(self.scalars),
            "stats": dict(self.stats),
            "tensors": {k: {"bits": np.packbits(v), "size": len(v)} for k, v in self.tensors.items()},
        }

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> Coverage:
        out = cls()
        out.rows = int(state["rows"])
        out.scalars = {str(k): int(v) for k, v in state["scalars"].items()}
        out.stats = {str(k): int(v) for k, v in state["stats"].items()}
        out.tensors = {
            str(k): np.unpackbits(v["bits"], count=v["size"]).astype(bool)
            for k, v in state["tensors"].items()
        }
        return out


def seen_stats(coverages: Sequence[Coverage], columns: Columns) -> frozenset[tuple[str, str]]:
    """The (role, statistic) pairs that any rank has logged."""
    size = len(columns)
    found: set[tuple[str, str]] = set()
    for stat in {stat for c in coverages for stat in c.tensors}:
        seen = np.zeros(size, bool)
        for coverage in coverages:
            seen |= coverage.has(stat, size)
        found |= {(role, stat) for role, code in ROLE_CODES.items() if (seen & (columns.role == code)).any()}
    return frozenset(found)
