"""What a fault can do, when, and to what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from floatscope_trainer.data import TokenBatch
from floatscope_trainer.emulated.quantizers import Quantizer
from floatscope_trainer.emulated.scaling import DelayedScalingState
from floatscope_trainer.emulated.state import BACKWARD_SLOTS, FORWARD_SLOTS


@dataclass(frozen=True)
class Scene:
    """What faults reach of a run.

    layers: linear layers by name.  quantizers: by `layer/role`, empty on Transformer Engine.  seed: of the
    run, for what a fault draws.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    layers: dict[str, nn.Module]
    quantizers: dict[str, Quantizer]
    vocab_size: int
    seed: int

    def draw(self, high: int, *, step: int) -> int:
        """A whole number below `high`, from seed and step alone."""
        return int(np.random.default_rng([self.seed, step, high]).integers(high))


class Fault:
    """A fault that does nothing; each fault overrides the moments it needs.

    A step: begin_step, then per micro-batch batch, forward, backward, end_pass, then the optimizer's step,
    end_step.
    """

    def begin_step(self, step: int) -> None:
        """Before the step's first forward pass."""

    def batch(self, step: int, micro: int, batch: TokenBatch) -> TokenBatch:
        """The micro-batch that is trained instead of `batch`."""
        return batch

    def learning_rate(self, step: int, lr: float) -> float:
        """The learning rate instead of `lr`."""
        return lr

    def end_pass(self, step: int) -> None:
        """After a backward pass: both directions' scales are updated."""

    def end_step(self, step: int) -> None:
        """After the optimizer's step."""


@dataclass(frozen=True)
class ScaleSlot:
    """One tensor's delayed-scaling state: its column in its module's state."""

    state: DelayedScalingState
    slot: int
    fp8_max: float

    @property
    def scale(self) -> torch.Tensor:
        """Shape (), live."""
        return self.state.scale[self.slot]

    def set_scale(self, value: float) -> None:
        """Overwrites the scale in place."""
        self.state.scale[self.slot] = value

    def clear_history(self) -> None:
        """Zeroes the history, the open row included."""
        self.state.amax_history[:, self.slot] = 0


def scale_slot(scene: Scene, tensor: str) -> ScaleSlot | None:
    """The delayed-scaling state of `layer/role`, or None if the tensor has none."""
    layer, _, role = tensor.rpartition("/")
    meta: dict[str, Any] = getattr(scene.layers.get(layer), "fp8_meta", {})
    backward = role in BACKWARD_SLOTS
    state = meta.get("scaling_bwd" if backward else "scaling_fwd")
    if state is None or getattr(state, "amax_history", None) is None:
        return None
    slots = BACKWARD_SLOTS if backward else FORWARD_SLOTS
    return ScaleSlot(
        state=state, slot=slots.index(role), fp8_max=meta["fp8_max_bwd" if backward else "fp8_max_fwd"]
    )
