"""Faults at the cast: a tensor grows faster than its scale, an outlier enters the history, casts round toward
zero.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from floatscope_trainer.emulated.casts import amax
from floatscope_trainer.emulated.quantizers import Operand, Quantize
from floatscope_trainer.faults.fault import Fault, Scene


class StaleScale(Fault):
    """The tensor is `factor` times larger at the cast from the step on, and divided again behind it.

    In real arithmetic nothing happens, forward or backward; only the scale, made for the old size, no longer
    fits until it follows. (Rescaling the weights instead would change Adam's relative step.)
    """

    def __init__(self, scene: Scene, *, step: int, tensors: Sequence[str], factor: float) -> None:
        self._step, self._factor = step, factor
        self._quantizers = [scene.quantizers[tensor] for tensor in tensors]

    def begin_step(self, step: int) -> None:
        """Puts the factor around the casts."""
        if step == self._step:
            for quantizer in self._quantizers:
                quantizer.arounds.append(self._times)

    def _times(self, values: Tensor, *, quantize: Quantize, record: bool) -> tuple[Tensor, Operand]:
        seen, operand = quantize(values * self._factor, record=record)
        return seen, operand.divided(self._factor)


class HistoryPoison(Fault):
    """One element is `factor` times the tensor's amax when amax is taken, in the step's first pass, and
    itself again in the GEMM.
    """

    def __init__(self, scene: Scene, *, step: int, tensors: Sequence[str], factor: float) -> None:
        self._scene, self._step, self._factor = scene, step, factor
        self._quantizers = [scene.quantizers[tensor] for tensor in tensors]

    def begin_step(self, step: int) -> None:
        """Puts the outlier in front of the casts."""
        if step == self._step:
            for quantizer in self._quantizers:
                quantizer.arounds.append(self._outlier)

    def end_pass(self, step: int) -> None:
        """Takes it away."""
        for quantizer in self._quantizers:
            if self._outlier in quantizer.arounds:
                quantizer.arounds.remove(self._outlier)

    def _outlier(self, values: Tensor, *, quantize: Quantize, record: bool) -> tuple[Tensor, Operand]:
        poisoned = values.clone(memory_format=torch.contiguous_format)
        position = self._scene.draw(values.numel(), step=self._step)
        poisoned.view(-1)[position] = amax(values) * self._factor
        seen, _ = quantize(poisoned, record=record)
        _, operand = quantize(values, record=False)
        return seen, operand


class RoundTowardZero(Fault):
    """Casts round the magnitude down to the next code, from the step on."""

    def __init__(self, scene: Scene, *, step: int, tensors: Sequence[str]) -> None:
        self._step = step
        self._quantizers = [scene.quantizers[tensor] for tensor in tensors]

    def begin_step(self, step: int) -> None:
        """Switches the rounding."""
        if step == self._step:
            for quantizer in self._quantizers:
                quantizer.mode = "rtz"
