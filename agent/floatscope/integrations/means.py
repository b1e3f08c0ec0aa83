"""The mean loss of a step's micro-batches, worked out where the losses are."""

from __future__ import annotations

from typing import Any


class MeanLoss:
    """Adds up one-element tensors or numbers without waiting for a device."""

    def __init__(self) -> None:
        self._sum: Any = None
        self._count = 0

    def add(self, loss: Any) -> None:
        """One micro-batch's loss; anything that is no single number is passed over."""
        if hasattr(loss, "detach"):
            loss = loss.detach()
            if hasattr(loss, "to_local"):
                loss = loss.to_local()
            if loss.numel() != 1:
                return
            loss = loss.reshape(()) + 0  # a copy: buffers of CUDA graphs are written over
        elif not isinstance(loss, int | float):
            return
        self._sum = loss if self._sum is None else self._sum + loss
        self._count += 1

    def take(self) -> Any:
        """The mean since the last call, a number or a tensor without dimensions; None if there was none."""
        found = None if self._sum is None else self._sum / self._count
        self._sum, self._count = None, 0
        return found

    def take_sum(self) -> Any:
        """The sum since the last call, for losses that are parts of a mean already."""
        found = self._sum
        self._sum, self._count = None, 0
        return found
