"""Faults in the weights and in one operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from floatscope_trainer.faults.fault import Fault, Scene

TILE_COLUMNS = 64  # one tile of a GEMM kernel's output


class Bf16Weights(Fault):
    """Every weight is rounded to bf16 in each optimizer step from the step on: no float32 copy is kept.

    Hooked before the agent is: who looks after the optimizer's step sees the weights as they are stored.
    """

    def __init__(self, scene: Scene, *, step: int) -> None:
        self._scene, self._first = scene, step
        self._is_on = False
        scene.optimizer.register_step_post_hook(self._round)

    def begin_step(self, step: int) -> None:
        """Rounds the results of optimizer steps from now on."""
        if step == self._first:
            self._is_on = True

    @torch.no_grad()
    def _round(self, *_: Any) -> None:
        if self._is_on:
            for parameter in self._scene.model.parameters():
                parameter.copy_(parameter.to(torch.bfloat16))


class BitFlip(Fault):
    """One bit of one element of each given weight flips before the step. Bit 31 is the sign, 30 to 23 the
    exponent.
    """

    def __init__(self, scene: Scene, *, step: int, tensors: Sequence[str], bit: float) -> None:
        self._scene, self._step, self._bit = scene, step, int(bit)
        self._weights = [
            scene.model.get_parameter(tensor.replace("/weight", ".weight")) for tensor in tensors
        ]

    @torch.no_grad()
    def begin_step(self, step: int) -> None:
        """Flips."""
        if step != self._step:
            return
        mask = 1 << self._bit if self._bit < 31 else -(2**31)
        for weight in self._weights:
            bits = weight.view(-1).view(torch.int32)
            bits[self._scene.draw(weight.numel(), step=step)] ^= mask


class WrongOp(Fault):
    """A layer's forward kernel multiplies the first 64 columns of its output by `factor` from the step on;
    the backward is right.
    """

    def __init__(self, scene: Scene, *, step: int, tensors: Sequence[str], factor: float) -> None:
        self._step, self._factor = step, factor
        self._layers = [scene.layers[tensor.removesuffix("/output")] for tensor in tensors]

    def begin_step(self, step: int) -> None:
        """Hooks the layers."""
        if step == self._step:
            for layer in self._layers:
                layer.register_forward_hook(self._wrong, prepend=True)

    def _wrong(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        wrong: Tensor = _WrongTile.apply(output, self._factor)  # type: ignore[no-untyped-call]
        return wrong


class _WrongTile(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, output: Tensor, factor: float) -> Tensor:
        wrong = output.clone()
        wrong[..., :TILE_COLUMNS] *= factor
        return wrong

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        return grad_output, None
