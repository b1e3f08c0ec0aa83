"""Faults that double, skip or stale a step of the FP8 machinery, and float input out of range."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from floatscope_trainer.emulated.quantizers import Operand, Quantize
from floatscope_trainer.emulated.scaling import update_scales
from floatscope_trainer.faults.fault import Fault, Scene, scale_slot
from floatscope_trainer.training import Training


class HistoryTwiceAStep(Fault):
    """The backward pass computes activations again and records their amax a second time: every history
    advances two rows a step, so an old maximum drops out after half of the window.
    """

    def __init__(self, training: Training, scene: Scene, *, step: int) -> None:
        self._precision, self._scene, self._first = training.config.precision, scene, step

    def end_pass(self, step: int) -> None:
        if step < self._first:
            return
        for tensor in self._scene.quantizers:
            slot = scale_slot(self._scene, tensor)
            if slot is None:
                continue
            part = slice(slot.slot, slot.slot + 1)
            history, scale = slot.state.amax_history[:, part], slot.state.scale[part]
            again = history[-1].clone()
            history[0] = again
            update_scales(
                history,
                scale,
                fp8_max=scale.new_tensor([slot.fp8_max]),
                algo=self._precision.amax_compute_algo,
                margin=0,
            )


class WeightCopyStale(Fault):
    """The GEMM uses a quantized copy of a weight that is no longer refreshed from the step on."""

    def __init__(self, scene: Scene, *, step: int, tensor: str) -> None:
        self._first, self._now = step, -1
        self._copy: Operand | None = None
        scene.quantizers[tensor].arounds.append(self._old)

    def begin_step(self, step: int) -> None:
        self._now = step

    def _old(self, values: Tensor, *, quantize: Quantize, record: bool) -> tuple[Tensor, Operand]:
        seen, operand = quantize(values, record=record)
        if self._now < self._first:
            return seen, operand
        if self._copy is None:
            self._copy = Operand(
                row=operand.row.clone(),
                col=operand.col.clone(),
                scale_inv=None if operand.scale_inv is None else operand.scale_inv.clone(),
                scale=operand.scale,
            )
        kept = self._copy
        return seen, Operand(row=kept.row, col=kept.col, scale_inv=kept.scale_inv, scale=operand.scale)


class FeaturesTimes(Fault):
    """One sequence's input features are ``factor`` times what they should be, in one step."""

    def __init__(self, scene: Scene, *, step: int, factor: float) -> None:
        self._step, self._factor, self._now = step, factor, -1
        scene.model.get_submodule("tok_emb").register_forward_hook(self._grow)

    def begin_step(self, step: int) -> None:
        self._now = step

    def _grow(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        if self._now != self._step or not module.training:
            return output
        grown = output.clone()
        grown[0] *= self._factor
        return grown
