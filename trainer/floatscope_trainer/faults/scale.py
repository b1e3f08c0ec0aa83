"""Faults in the scale state: what the recipe keeps is overwritten, lost or no longer updated. The tensors
stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from floatscope_trainer.emulated.quantizers import Operand, Quantize, Quantizer
from floatscope_trainer.faults.fault import Fault, ScaleSlot, Scene, scale_slot

FIXED_SCALE = {"e4m3": 1.0, "e5m2": 2.0**-6}
"""Scales at which the gradients of a small model vanish, by format."""


def delayed_slots(scene: Scene, tensors: Sequence[str]) -> list[ScaleSlot]:
    """The delayed-scaling states of the tensors; those without one are left out."""
    found = (scale_slot(scene, tensor) for tensor in tensors)
    return [slot for slot in found if slot is not None]


class ScaleFrozen(Fault):
    """Scales keep the value they have at the step; histories go on."""

    def __init__(self, scene: Scene, *, step: int, tensors: Sequence[str]) -> None:
        self._scene, self._first, self._tensors = scene, step, tensors
        self._kept: list[tuple[ScaleSlot, float]] = []

    def begin_step(self, step: int) -> None:
        """Notes the scales."""
        if step == self._first:
            slots = delayed_slots(self._scene, self._tensors)
            self._kept = [(slot, slot.scale.item()) for slot in slots]

    def end_pass(self, step: int) -> None:
        """Undoes the update."""
        for slot, value in self._kept:
            slot.set_scale(value)


class ScaleOverwritten(Fault):
    """The scale is `value` for the step's first pass; the update after it computes a right one again."""

    def __init__(self, scene: Scene, *, step: int, tensors: Sequence[str], value: float) -> None:
        self._scene, self._step, self._tensors, self._value = scene, step, tensors, value

    def begin_step(self, step: int) -> None:
        """Overwrites."""
        if step == self._step:
            for slot in delayed_slots(self._scene, self._tensors):
                slot.set_scale(self._value)


class HistoryLost(Fault):
    """Histories are empty and scales 1 at the step, as after a resume that did not load the scale state."""

    def __init__(self, scene: Scene, *, step: int, tensors: Sequence[str]) -> None:
        self._scene, self._step, self._tensors = scene, step, tensors

    def begin_step(self, step: int) -> None:
        """Forgets."""
        if step == self._step:
            for slot in delayed_slots(self._scene, self._tensors):
                slot.clear_history()
                slot.set_scale(1.0)


class DegenerateAmax(Fault):
    """The cast sees zeros in the step, so amax is 0, and a recipe without Transformer Engine's guard makes 1
    / 0 of it.

    The step's GEMMs use the true tensor. The next step's casts multiply by infinity; the update after them
    heals.
    """

    def __init__(self, scene: Scene, *, step: int, tensors: Sequence[str]) -> None:
        self._scene, self._step, self._tensors = scene, step, tensors
        self._quantizers = [scene.quantizers[tensor] for tensor in tensors]

    def begin_step(self, step: int) -> None:
        """Puts the zeros in front of the cast."""
        if step == self._step:
            for quantizer in self._quantizers:
                quantizer.arounds.append(self._zeros)

    def end_step(self, step: int) -> None:
        """Takes the zeros away, and updates without the guard."""
        if step == self._step:
            for quantizer in self._quantizers:
                quantizer.arounds.remove(self._zeros)
            for slot in delayed_slots(self._scene, self._tensors):
                slot.set_scale(math.inf)

    def _zeros(self, values: Tensor, *, quantize: Quantize, record: bool) -> tuple[Tensor, Operand]:
        zeros, _ = quantize(torch.zeros_like(values), record=record)
        _, operand = quantize(values, record=False)
        return zeros, operand


class FixedScale(Fault):
    """The scale is a constant from the step on, whatever the tensor; by default one at which gradients
    vanish.
    """

    def __init__(self, scene: Scene, *, step: int, tensors: Sequence[str], value: float | None) -> None:
        self._first = step
        self._targets: list[tuple[Quantizer, ScaleSlot | None, float]] = []
        for tensor in tensors:
            quantizer = scene.quantizers[tensor]
            fixed = FIXED_SCALE[quantizer.fmt.removeprefix("mxfp8_")] if value is None else value
            self._targets.append((quantizer, scale_slot(scene, tensor), fixed))

    def begin_step(self, step: int) -> None:
        """Sets the scale."""
        if step == self._first:
            self._fix()

    def end_pass(self, step: int) -> None:
        """Sets it again, after the update."""
        if step >= self._first:
            self._fix()

    def _fix(self) -> None:
        for quantizer, slot, value in self._targets:
            if slot is None:
                quantizer.fixed_scale = value
            else:
                slot.set_scale(value)


class FallingScale(Fault):
    """The scale in use sinks `bits` per step below what the recipe computes, from the step on."""

    def __init__(self, scene: Scene, *, step: int, tensors: Sequence[str], bits: float) -> None:
        self._scene, self._first, self._tensors, self._bits = scene, step, tensors, bits
        self._right: dict[str, float] = {}
        self._written: dict[str, float] = {}

    def begin_step(self, step: int) -> None:
        """Lowers the scales for this step."""
        if step >= self._first:
            self._lower(step)

    def end_pass(self, step: int) -> None:
        """Lowers what the update computed; where it kept the scale, the right one is the old one."""
        if step >= self._first:
            self._lower(step)

    def _lower(self, step: int) -> None:
        factor = 2.0 ** (-self._bits * (step - self._first + 1))
        for tensor in self._tensors:
            slot = scale_slot(self._scene, tensor)
            if slot is None:
                continue
            now = slot.scale.item()
            if now != self._written.get(tensor):
                self._right[tensor] = now
            slot.set_scale(self._right[tensor] * factor)
            self._written[tensor] = slot.scale.item()
