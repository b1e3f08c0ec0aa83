"""Curves that come one by one, each with steps of its own, put together to rows."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import numpy as np

from floatscope.protocol.batch import Batch, Bool, Float64, Int64
from floatscope.protocol.names import MAX_STEP
from floatscope_diagnostics.readers.falling_steps import MOST_BACK, untrusted
from floatscope_diagnostics.readers.field_names import FieldNames
from floatscope_diagnostics.readers.run_log import Tally

MAX_SERIES = 4_000  # names; a batch takes 4,096
_ROWS_A_BATCH = 512


@dataclass
class _Part:
    """Points of one curve in one life of the run."""

    step: array[int] = field(default_factory=lambda: array("q"))
    value: array[float] = field(default_factory=lambda: array("d"))
    time: array[float] = field(default_factory=lambda: array("d"))


class Series:
    """Curves by name. Memory follows the number of points.

    A point below its curve's last step begins a new life of the run (a resume from an older checkpoint) for
    all curves; one at the same step replaces the last. Where that happens too often to be believed the points
    of each curve are counted instead.
    """

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._lives: list[dict[str, _Part]] = [{}]
        self._names: dict[str, None] = {}
        self._points = 0
        self._first = ""  # step back
        self._counted = False
        self._usable = FieldNames()

    @property
    def names(self) -> AbstractSet[str]:
        """The curves that have a point, in the order of their first ones."""
        return self._names.keys()

    def add(self, name: str, step: int, value: float, time: float = float("nan")) -> None:
        """Takes the next point of a curve. time: Unix seconds, NaN if not known."""
        if not 0 <= step <= MAX_STEP:
            self._tally.note(f"points of {name[:60]} with an absurd step were left out, such as {step}")
            return
        part = self._part(name)
        if part is None:
            return
        self._points += 1
        if self._counted:
            step = len(part.step) + 1
        elif part.step and step < part.step[-1]:
            self._lives.append({})
            self._first = self._first or f"{name[:60]} to step {step:,}, point {self._points:,} of the log"
            if untrusted(len(self._lives) - 1, self._points):
                self._count()
            part = self._part(name)
            assert part is not None
            step = len(part.step) + 1 if self._counted else step
        if part.step and step == part.step[-1]:
            part.value[-1], part.time[-1] = value, time
            return
        part.step.append(step)
        part.value.append(value)
        part.time.append(time)

    def _count(self) -> None:
        """Puts the points so far into one life, counted from 1."""
        together: dict[str, _Part] = {}
        for life in self._lives:
            for key, part in life.items():
                all_of_it = together.setdefault(key, _Part())
                all_of_it.value += part.value
                all_of_it.time += part.time
        for part in together.values():
            part.step = array("q", range(1, len(part.value) + 1))
        self._lives = [together]
        self._counted = True
        self._tally.steps_from = (
            f"points step back more than {MOST_BACK:,} times (first {self._first}): steps "
            "are a count of the points of each curve"
        )
        self._tally.note(self._tally.steps_from)

    def _part(self, name: str) -> _Part | None:
        part = self._lives[-1].get(name)
        if part is None:
            if name not in self._names:
                if len(self._names) >= MAX_SERIES:
                    self._tally.note(f"more than {MAX_SERIES:,} curves: the rest are left out")
                    return None
                if not self._usable.usable(name):
                    self._usable.tell(self._tally)
                    return None
                self._names[name] = None
            part = self._lives[-1][name] = _Part()
        return part

    def batches(self, mapping: Mapping[str, str]) -> Iterator[tuple[int, Batch]]:
        """The rows, life after life. mapping: our names of curves that have one."""
        for life in self._lives:
            if not life:
                continue
            steps = np.unique(np.concatenate([np.frombuffer(p.step, np.int64) for p in life.values()]))
            for at in range(0, len(steps), _ROWS_A_BATCH):
                yield 0, _batch(steps[at : at + _ROWS_A_BATCH], life, mapping)


def _batch(steps: Int64, life: Mapping[str, _Part], mapping: Mapping[str, str]) -> Batch:
    """The rows of ``steps``, ascending: the curves that have a point among them."""
    names: list[str] = []
    columns: list[Float64] = []
    masks: list[Bool] = []
    time: Float64 = np.full(len(steps), np.nan)
    for name, part in life.items():
        own = np.frombuffer(part.step, np.int64)
        first, last = np.searchsorted(own, (steps[0], steps[-1] + 1))
        if first == last:
            continue
        rows = np.searchsorted(steps, own[first:last])
        column, mask = np.zeros(len(steps)), np.zeros(len(steps), bool)
        column[rows] = np.frombuffer(part.value)[first:last]
        mask[rows] = True
        time[rows] = np.fmax(time[rows], np.frombuffer(part.time)[first:last])
        names.append(mapping.get(name, name))
        columns.append(column)
        masks.append(mask)
    return Batch(
        step=steps,
        time=time,
        scalar_names=tuple(names),
        scalars=np.stack(columns, axis=1),
        scalars_present=np.stack(masks, axis=1),
    )
