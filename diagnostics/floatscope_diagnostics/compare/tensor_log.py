"""The tensor statistics of one run that a comparison looks at, within a budget of memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.batch import Batch

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]

BUDGET_BYTES = 256 << 20  # a side; beyond it every other row is dropped, in both runs the same ones
KEPT = (
    "amax", "rms", "scale", "overflow_pct", "underflow_pct", "sqnr_db", "grad_norm", "update_ratio",
)  # fmt: skip
NONFINITE = "nonfinite"  # derived: 1 where NaN or Inf was counted or shows in amax, rms or scale
NONFINITE_GRAD = "nonfinite_grad"  # derived: 1 where the gradient norm of a weight is not finite
_WRAPPERS = ("module.", "_orig_mod.")  # what DDP and torch.compile put before or into a layer's name


class TensorLog:
    """Rows of statistics, in the order in which they came."""

    def __init__(self) -> None:
        self.stride = 1  # only rows whose step is a multiple of it are kept
        self.names: set[str] = set()
        self._parts: list[tuple[Int64, tuple[str, ...], dict[str, Float32]]] = []
        self._bytes = 0

    def add(self, batch: Batch, wanted: Bool) -> None:
        """Takes the rows of a batch whose steps are wanted, bool [T]."""
        rows = wanted[batch.stat_row]
        if not rows.any() or not batch.tensor_names:
            return
        step = batch.step[batch.stat_row][rows]
        stats = {name: values[rows] for name, values in _values(batch).items()}
        names = tuple(plain_name(n) for n in batch.tensor_names)
        self.names.update(names)
        self._parts.append(_every(self.stride, step, names, stats))
        self._bytes += _size(self._parts[-1])
        while self._bytes > BUDGET_BYTES and len(self.steps()) > 1:
            self.thin(2 * self.stride)

    def thin(self, stride: int) -> None:
        """Keeps the rows whose step is a multiple of ``stride``."""
        if stride > self.stride:
            self.stride = stride
            thinned = [_every(stride, *part) for part in self._parts]
            self._parts = [part for part in thinned if len(part[0])]
            self._bytes = sum(_size(part) for part in self._parts)

    def steps(self) -> set[int]:
        return {int(s) for step, _, _ in self._parts for s in step}

    def stats(self) -> set[str]:
        return {name for _, _, stats in self._parts for name in stats}

    def table(self, stat: str, steps: Sequence[int], names: Sequence[str]) -> Float32:
        """One statistic as float32 [steps, names]; NaN where missing. Of a repeated step the last counts."""
        out = np.full((len(steps), len(names)), np.nan, np.float32)
        row_of = {step: k for k, step in enumerate(steps)}
        column_of = {name: k for k, name in enumerate(names)}
        for step, own, stats in self._parts:
            values = stats.get(stat)
            rows = [(d, row_of[s]) for d, s in enumerate(step.tolist()) if s in row_of]
            columns = [(s, column_of[n]) for s, n in enumerate(own) if n in column_of]
            if values is None or not rows or not columns:
                continue
            source, target = np.array(rows).T, np.array(columns).T
            out[np.ix_(source[1], target[1])] = values[np.ix_(source[0], target[0])]
        return out


def plain_name(name: str) -> str:
    """A tensor's name without the wrappers that one of two runs may lack."""
    for wrapper in _WRAPPERS:
        name = name.replace("." + wrapper, ".").removeprefix(wrapper)
    return name


def _values(batch: Batch) -> Mapping[str, Float32]:
    """The kept statistics, NaN where missing, with NONFINITE and NONFINITE_GRAD."""
    out: dict[str, Float32] = {}
    bad = np.zeros((len(batch.stat_row), len(batch.tensor_names)), bool)
    seen = np.zeros_like(bad)
    for stat in ("nan_count", "inf_count"):
        values, present = batch.stat(stat)
        bad |= present & (values > 0)
        seen |= present
    for stat in KEPT:
        if stat not in batch.stats:
            continue
        values, present = batch.stat(stat)
        out[stat] = np.where(present, values, np.float32(np.nan))
        if stat in ("amax", "rms", "scale"):
            bad |= present & ~np.isfinite(values)
            seen |= present
        if stat == "grad_norm":
            out[NONFINITE_GRAD] = np.where(
                present, (~np.isfinite(values)).astype(np.float32), np.float32(np.nan)
            )
    out[NONFINITE] = np.where(seen, bad.astype(np.float32), np.float32(np.nan))
    return out


def _every(
    stride: int, step: Int64, names: tuple[str, ...], stats: Mapping[str, Float32]
) -> tuple[Int64, tuple[str, ...], dict[str, Float32]]:
    keep = step % stride == 0
    return step[keep], names, {name: values[keep] for name, values in stats.items()}


def _size(part: tuple[Int64, Iterable[str], Mapping[str, Float32]]) -> int:
    return sum(values.nbytes for values in part[2].values())
