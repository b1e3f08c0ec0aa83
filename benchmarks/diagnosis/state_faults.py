"""Faults in the optimizer, the gradients, the weights and single operations that the trainer has no option
for.

Each acts through the moments of the trainer's public ``Fault``; those that need the optimizer or the loss
scaler get the training itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from floatscope_trainer.emulated.quantizers import Operand, Quantize
from floatscope_trainer.faults.fault import Fault, Scene
from floatscope_trainer.training import Training


class SecondMomentTimes(Fault):
    """Adam's second moment is multiplied once, as by a state that went through a format too narrow for it."""

    def __init__(self, training: Training, *, step: int, factor: float) -> None:
        self._training, self._step, self._factor = training, step, factor

    def begin_step(self, step: int) -> None:
        if step == self._step:
            for state in self._training.optimizer.state.values():
                state["exp_avg_sq"].mul_(self._factor)


class MomentsLost(Fault):
    """The optimizer starts from nothing, as after a resume that did not load it."""

    def __init__(self, training: Training, *, step: int) -> None:
        self._training, self._step = training, step

    def begin_step(self, step: int) -> None:
        if step == self._step:
            for state in self._training.optimizer.state.values():
                for value in state.values():
                    value.zero_()


class Epsilon(Fault):
    """Adam's epsilon is far too large from the step on: updates shrink."""

    def __init__(self, training: Training, *, step: int, value: float) -> None:
        self._training, self._step, self._value = training, step, value

    def begin_step(self, step: int) -> None:
        if step == self._step:
            for group in self._training.optimizer.param_groups:
                group["eps"] = self._value


class StaleMasterWeights(Fault):
    """The step's update writes weights of an older checkpoint, as from master weights not loaded."""

    def __init__(self, training: Training, *, step: int, weights: Mapping[str, Tensor]) -> None:
        self._training, self._step, self._weights = training, step, weights

    @torch.no_grad()
    def end_step(self, step: int) -> None:
        if step == self._step:
            for name, parameter in self._training.model.named_parameters():
                parameter.copy_(self._weights[name])


class LearningRate(Fault):
    """Multiplies the schedule's learning rate from the step on, in full after ``ramp`` steps."""

    def __init__(self, *, step: int, factor: float, ramp: int = 0) -> None:
        self._first, self._factor, self._ramp = step, factor, ramp

    def learning_rate(self, step: int, lr: float) -> float:
        if step < self._first:
            return lr
        share = min(1.0, (step - self._first + 1) / (self._ramp + 1))
        return float(lr * self._factor**share)


class LossScale(Fault):
    """The FP16 loss scale is a constant from the step on."""

    def __init__(self, training: Training, *, step: int, value: float) -> None:
        self._training, self._first, self._value = training, step, value

    def begin_step(self, step: int) -> None:
        scaler = self._training.scaler
        if step >= self._first and scaler is not None:
            scaler.load_state_dict({**scaler.state_dict(), "scale": self._value})


class GradientElement(Fault):
    """One element of one weight's gradient is ``value``.

    period: on every such step from the first on, None for the first only.
    """

    def __init__(
        self, scene: Scene, *, step: int, layer: str, value: float, period: int | None = None
    ) -> None:
        self._scene, self._first, self._value, self._period = scene, step, value, period
        self._weight = scene.model.get_parameter(f"{layer}.weight")

    def end_pass(self, step: int) -> None:
        age = step - self._first
        if age < 0 or (age and (self._period is None or age % self._period)):
            return
        assert self._weight.grad is not None
        self._weight.grad.view(-1)[self._scene.draw(self._weight.numel(), step=step)] = self._value


class GradientsTimes(Fault):
    """All weight gradients are multiplied at the given steps, as by an unlucky batch; clipping answers it."""

    def __init__(self, training: Training, *, steps: Sequence[int], factor: float) -> None:
        self._training, self._steps, self._factor = training, frozenset(steps), factor

    def end_pass(self, step: int) -> None:
        if step in self._steps:
            for parameter in self._training.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(self._factor)


class GradientsInE5M2(Fault):
    """Weight gradients are summed in E5M2 without a scale, in ``parts`` equal parts: what is small vanishes,
    and a sum stops growing where a part is less than half of its spacing.
    """

    def __init__(self, training: Training, *, step: int, parts: int = 32) -> None:
        self._training, self._first, self._parts = training, step, parts

    def end_pass(self, step: int) -> None:
        if step < self._first:
            return
        for parameter in self._training.model.parameters():
            if parameter.grad is not None:
                part = parameter.grad / self._parts
                total = torch.zeros_like(part)
                for _ in range(self._parts):
                    total = (total + part).to(torch.float8_e5m2).to(torch.float32)
                parameter.grad.copy_(total)


class GradientRace(Fault):
    """On every step some layers, ``share`` of them, use a gradient that is half reduced, or reduced twice."""

    def __init__(self, scene: Scene, *, step: int, share: float = 0.3) -> None:
        self._scene, self._first, self._share = scene, step, share
        self._weights = [scene.model.get_parameter(f"{layer}.weight") for layer in scene.layers]

    def end_pass(self, step: int) -> None:
        if step < self._first:
            return
        draw = np.random.default_rng([self._scene.seed, step, 21])
        for weight in self._weights:
            if draw.random() < self._share and weight.grad is not None:
                rows = len(weight.grad) // 2
                weight.grad[:rows].mul_(float(draw.choice([0.0, 2.0, 4.0])))


class DeadLogits(Fault):
    """The logits are 0 from the step on."""

    def __init__(self, scene: Scene, *, step: int) -> None:
        self._scene, self._step = scene, step

    def begin_step(self, step: int) -> None:
        if step == self._step:
            self._scene.model.get_submodule("head").register_forward_hook(self._zero)

    def _zero(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return output * 0


class GrowingChannel(Fault):
    """One channel between fc1 and fc2 of a block grows by ``rate`` a step; fc2's weight undoes it, so that
    the function stays.
    """

    def __init__(self, scene: Scene, *, step: int, block: str, rate: float) -> None:
        self._first, self._rate = step, rate
        self._fc1 = scene.model.get_parameter(f"{block}.mlp.fc1.weight")
        self._fc2 = scene.model.get_parameter(f"{block}.mlp.fc2.weight")
        self._channel = scene.draw(self._fc2.shape[1], step=step)

    @torch.no_grad()
    def begin_step(self, step: int) -> None:
        if step >= self._first:
            self._fc1[self._fc2.shape[1] + self._channel] *= self._rate
            self._fc2[:, self._channel] /= self._rate


class GrowingLogits(Fault):
    """The query and key weights of a block grow by ``rate`` a step each."""

    def __init__(self, scene: Scene, *, step: int, block: str, rate: float) -> None:
        self._first, self._rate = step, rate
        self._qkv = scene.model.get_parameter(f"{block}.attn.qkv.weight")

    @torch.no_grad()
    def begin_step(self, step: int) -> None:
        if step >= self._first:
            self._qkv[: 2 * len(self._qkv) // 3] *= self._rate


class GrowingInput(Fault):
    """A tensor is ``rate`` times larger at the cast with every step, and divided again behind it."""

    def __init__(self, scene: Scene, *, step: int, tensor: str, rate: float) -> None:
        self._first, self._rate, self._factor = step, rate, 1.0
        scene.quantizers[tensor].arounds.append(self._times)

    def begin_step(self, step: int) -> None:
        self._factor = self._rate ** max(0, step - self._first + 1)

    def _times(self, values: Tensor, *, quantize: Quantize, record: bool) -> tuple[Tensor, Operand]:
        if self._factor == 1.0:
            return quantize(values, record=record)
        seen, operand = quantize(values * self._factor, record=record)
        return seen, operand.divided(self._factor)


class HiddenInfinity(Fault):
    """One element is infinite at the cast, which saturates, so that nobody notices.

    steps: how often in a row.
    """

    def __init__(self, scene: Scene, *, step: int, tensor: str, steps: int) -> None:
        self._scene, self._first, self._steps = scene, step, steps
        self._now = -1
        scene.quantizers[tensor].arounds.append(self._poke)

    def begin_step(self, step: int) -> None:
        self._now = step

    def _poke(self, values: Tensor, *, quantize: Quantize, record: bool) -> tuple[Tensor, Operand]:
        if not self._first <= self._now < self._first + self._steps:
            return quantize(values, record=record)
        poked = values.clone(memory_format=torch.contiguous_format)
        poked.view(-1)[self._scene.draw(values.numel(), step=self._now)] = torch.inf
        return quantize(poked, record=record)
