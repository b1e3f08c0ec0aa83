"""Tensors of real runs: inputs, weights and output gradients of the bundled trainer in FP8."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from floatscope_trainer.config import ModelConfig, OptimConfig, PrecisionConfig, TrainConfig
from floatscope_trainer.data import load_text
from floatscope_trainer.emulated.backend import EmulatedBackend
from floatscope_trainer.emulated.linear import EmulatedLinear
from floatscope_trainer.training import Training

_KEY = -1  # of this module's inspector
_MODEL = ModelConfig(layers=2, width=256, heads=4, hidden=512, context=128)


def tensors(seed: int, *, steps: int, dumped: frozenset[int]) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Trains a small model and yields (name, values) of what its casts saw at the dumped steps."""
    torch.manual_seed(seed)
    text = load_text([], context=_MODEL.context)
    config = TrainConfig(
        model=replace(_MODEL, vocab_size=text.vocab_size),
        precision=PrecisionConfig(precision="fp8", recipe="current"),
        optim=OptimConfig(decay_steps=steps),
        steps=steps,
        seed=seed,
    )
    training = Training(config, backend=EmulatedBackend(config), text=text)
    layers = [(name, m) for name, m in training.model.named_modules() if isinstance(m, EmulatedLinear)]
    names = {id(module): name for name, module in layers}
    seen: list[tuple[str, NDArray[np.float32]]] = []

    def inspect(layer: nn.Module, role: str, values: Tensor, *_rest: object) -> None:
        name = f"{names[id(layer)]}/{role} step {training.next_step}"
        seen.append((name, values.detach().float().numpy().copy()))

    state = layers[0][1].fp8_global_state
    for step in range(steps):
        if step in dumped:
            state.inspectors[_KEY] = inspect
        training.step(see_batch=lambda _batch: None)
        state.inspectors.pop(_KEY, None)
        yield from seen
        seen.clear()
