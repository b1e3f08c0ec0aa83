"""What an optimizer step changed in the weights, from copies made just before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from floatscope.probes.gradients import RootOfSquares, by_device, local_values, norms_of
from floatscope.probes.readout import Consumer, Readout
from floatscope.probes.statistics import block_of
from floatscope.probes.weights import Weight
from floatscope.rows import Row


@dataclass(frozen=True, eq=False)
class _Copy:
    """A weight's old values, or a piece of them.

    start, count: the piece, along the first dimension, or of all elements where it is flat; count None for
    the whole.
    """

    weight: Weight
    old: Tensor
    start: int = 0
    count: int | None = None
    is_flat: bool = False

    def now(self) -> Tensor | None:
        """The same elements as they are now; None if the weight has got another shape."""
        values = local_values(self.weight.parameter)
        if values is None:
            return None
        piece = values if self.count is None else _piece(values, self.start, self.count, is_flat=self.is_flat)
        return piece if piece is not None and piece.shape == self.old.shape else None


class WeightUpdates:
    """Copies weights before a step and compares after it.

    budget_bytes: copies alive at a time.  turn_steps: where all weights do not fit, each is copied once in
    about this many steps; of one that is larger than the budget a piece, each time the next one.
    """

    def __init__(self, *, budget_bytes: int, turn_steps: int) -> None:
        self.budget_bytes = budget_bytes
        self.turn_steps = turn_steps
        self._next = 0
        self._credit = 0
        self._copies: list[_Copy] = []
        self._is_all = False
        self._weights: Sequence[Weight] | None = None
        self._able: list[Weight] = []
        self._sizes: list[int] = []
        self._cursors: dict[int, int] = {}

    @property
    def copied_bytes(self) -> int:
        """Bytes of the copies that are alive."""
        return sum(copy.old.numel() * copy.old.element_size() for copy in self._copies)

    def before(self, weights: Sequence[Weight], *, is_sampled: bool) -> None:
        """Copies what this step is compared with: everything on a sampled step, or what has its turn."""
        if weights is not self._weights:
            self._weights = weights
            self._able = [w for w in weights if w.parameter.requires_grad and w.nbytes]
            self._sizes = [weight.nbytes for weight in self._able]
            self._cursors.clear()
        fits = sum(self._sizes) <= self.budget_bytes
        self._is_all = fits and is_sampled
        if fits and not is_sampled:
            return
        chosen = range(len(self._able)) if fits else self._take_turns()
        self._copies = [copy for at in chosen if (copy := self._copy(at)) is not None]

    def _take_turns(self) -> list[int]:
        sizes = [min(size, self.budget_bytes) for size in self._sizes]
        self._credit = min(self._credit - (-sum(sizes) // self.turn_steps), self.budget_bytes)
        chosen: list[int] = []
        for _ in range(len(sizes)):
            at = self._next % len(sizes)
            if sizes[at] > self._credit or not self.budget_bytes:
                break
            self._credit -= sizes[at]
            chosen.append(at)
            self._next = at + 1
        return chosen

    def _copy(self, at: int) -> _Copy | None:
        values = local_values(self._able[at].parameter)
        if values is None:
            return None
        if self._sizes[at] <= self.budget_bytes:
            return _Copy(self._able[at], values.clone())
        return self._copy_piece(at, values)

    def _copy_piece(self, at: int, values: Tensor) -> _Copy | None:
        row_bytes = self._sizes[at] // values.shape[0]
        is_flat = row_bytes > self.budget_bytes
        if is_flat and not values.is_contiguous():
            return None  # its elements in a row would be another copy of all
        unit, length = (values.element_size(), values.numel()) if is_flat else (row_bytes, values.shape[0])
        count = min(self.budget_bytes // unit, length)
        start = self._cursors.get(at, 0)
        start = 0 if start >= length else min(start, length - count)
        self._cursors[at] = start + count
        piece = _piece(values, start, count, is_flat=is_flat) if count else None
        return None if piece is None else _Copy(self._able[at], piece.clone(), start, count, is_flat)

    def after(self, readout: Readout, total: RootOfSquares) -> None:
        """Compares the copies with the weights as they are now.

        total: of the whole update; spoilt unless this step has copies of everything.
        """
        copies, self._copies = self._copies, []
        if not self._is_all:
            total.spoil()
        pairs = [(copy, now) for copy in copies if (now := copy.now()) is not None]
        for indices in by_device(copy.old for copy, _ in pairs).values():
            part = [pairs[i] for i in indices]
            olds = [copy.old for copy, _ in part]
            unchanged = torch.stack([torch.count_nonzero(copy.old == now) for copy, now in part])
            sizes = norms_of(olds)
            for copy, now in part:
                copy.old.sub_(now)  # the copy is ours and becomes the update; its sign does not matter
            values = torch.cat([norms_of(olds), sizes, unchanged.to(sizes.dtype)])
            shares = np.array([copy.weight.share for copy, _ in part])
            readout.add(
                values, _Comparison([copy.weight.tensor for copy, _ in part], olds, total.part(shares))
            )

    def clear(self) -> None:
        """Lets the copies go."""
        self._copies.clear()


def _piece(values: Tensor, start: int, count: int, *, is_flat: bool) -> Tensor | None:
    if is_flat:
        values = values.view(-1) if values.is_contiguous() else values[:0].reshape(-1)
    return values.narrow(0, start, count) if start + count <= values.shape[0] else None


class _Comparison:
    """Turns [update norms, weight norms, unchanged counts] into update_ratio and unchanged_pct.

    update_ratio is missing where the weight was all zeros.
    """

    def __init__(self, names: Sequence[str | None], copies: Sequence[Tensor], total: Consumer) -> None:
        self._keep = np.array([i for i, name in enumerate(names) if name is not None], np.intp)
        self._names = tuple(name for name in names if name is not None)
        self._numel = np.array([copy.numel() for copy in copies], np.float64)
        self._total = total

    def __call__(self, values: NDArray[np.float64], row: Row) -> None:
        update, size, unchanged = values.reshape(3, len(self._numel))
        self._total(update, row)
        if not self._names:
            return
        with np.errstate(divide="ignore", invalid="ignore"):
            found = {"update_ratio": update / size, "unchanged_pct": 100.0 * unchanged / self._numel}
        picked = {name: column[self._keep] for name, column in found.items()}
        row.blocks.append(block_of(self._names, picked, {"update_ratio": size[self._keep] != 0}))
