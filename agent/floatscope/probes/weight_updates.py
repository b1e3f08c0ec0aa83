"""What an optimizer step changed in the weights, from copies made just before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from floatscope.probes.gradients import RootOfSquares, by_device, local_values, norms_of
from floatscope.probes.readout import Readout
from floatscope.probes.statistics import block_of
from floatscope.rows import Row


@dataclass(frozen=True, eq=False)
class Weight:
    """A trained parameter.

    tensor: its name ``layer/weight``, or None if it has no statistics of its own.
    is_sharded: whether this rank holds only a part, so that norms here are not those of the whole.
    is_plain: see ``gradients.is_plain``.
    """

    parameter: torch.nn.Parameter
    tensor: str | None
    is_sharded: bool
    is_plain: bool


class WeightUpdates:
    """Copies weights before a step and compares after it.

    budget_bytes: copies alive at a time.  turn_steps: where all weights do not fit, each is copied once in
    about this many steps; one that is larger than the budget never is.
    """

    def __init__(self, *, budget_bytes: int, turn_steps: int) -> None:
        self._budget_bytes = budget_bytes
        self._turn_steps = turn_steps
        self._next = 0
        self._credit = 0
        self._old: list[tuple[Weight, Tensor]] = []
        self._is_all = False
        self._weights: Sequence[Weight] | None = None
        self._able: list[Weight] = []
        self._sizes: list[int] = []

    def before(self, weights: Sequence[Weight], *, is_sampled: bool) -> None:
        """Copies what this step is compared with: everything on a sampled step, or what has its turn."""
        if weights is not self._weights:
            self._weights = weights
            self._able = [w for w in weights if w.parameter.requires_grad and _nbytes(w)]
            self._sizes = [_nbytes(weight) for weight in self._able]
        fits = sum(self._sizes) <= self._budget_bytes
        self._is_all = fits and is_sampled
        if fits and not is_sampled:
            return
        chosen = self._able if fits else self._take_turns(self._able, self._sizes)
        self._old = [(w, values.clone()) for w in chosen if (values := local_values(w.parameter)) is not None]

    def _take_turns(self, weights: Sequence[Weight], sizes: Sequence[int]) -> list[Weight]:
        self._credit = min(self._credit - (-sum(sizes) // self._turn_steps), self._budget_bytes)
        chosen: list[Weight] = []
        for _ in range(len(weights)):
            at = self._next % len(weights)
            if sizes[at] <= self._budget_bytes:
                if sizes[at] > self._credit:
                    break
                self._credit -= sizes[at]
                chosen.append(weights[at])
            self._next = at + 1
        return chosen

    def after(self, readout: Readout) -> None:
        """Compares the copies with the weights as they are now."""
        if not self._old:
            return
        old, self._old = self._old, []
        found = [(w, copy, now) for w, copy in old if (now := local_values(w.parameter)) is not None]
        found = [entry for entry in found if entry[1].shape == entry[2].shape]
        places = by_device(copy for _, copy, _ in found)
        total = RootOfSquares("update_norm", parts=len(places)) if self._is_all else None
        for indices in places.values():
            part = [found[i] for i in indices]
            copies = [copy for _, copy, _ in part]
            unchanged = torch.stack([torch.count_nonzero(copy == now) for _, copy, now in part])
            sizes = norms_of(copies)
            for _, copy, now in part:
                copy.sub_(now)  # the copy is ours and becomes the update; its sign does not matter to a norm
            values = torch.cat([norms_of(copies), sizes, unchanged.to(sizes.dtype)])
            readout.add(values, _Comparison([w.tensor for w, _, _ in part], copies, total).add)

    def clear(self) -> None:
        """Lets the copies go."""
        self._old.clear()


class _Comparison:
    """Turns [update norms, weight norms, unchanged counts] into update_ratio and unchanged_pct.

    update_ratio is missing where the weight was all zeros.
    """

    def __init__(
        self, names: Sequence[str | None], copies: Sequence[Tensor], total: RootOfSquares | None
    ) -> None:
        self._keep = np.array([i for i, name in enumerate(names) if name is not None], np.intp)
        self._names = tuple(name for name in names if name is not None)
        self._numel = np.array([copy.numel() for copy in copies], np.float64)
        self._total = total

    def add(self, values: NDArray[np.float64], row: Row) -> None:
        update, size, unchanged = values.reshape(3, len(self._numel))
        if self._total is not None:
            self._total.add(update, row)
        if not self._names:
            return
        with np.errstate(divide="ignore", invalid="ignore"):
            found = {"update_ratio": update / size, "unchanged_pct": 100.0 * unchanged / self._numel}
        picked = {name: column[self._keep] for name, column in found.items()}
        row.blocks.append(block_of(self._names, picked, {"update_ratio": size[self._keep] != 0}))


def _nbytes(weight: Weight) -> int:
    values = local_values(weight.parameter)
    return 0 if values is None else values.numel() * values.element_size()
