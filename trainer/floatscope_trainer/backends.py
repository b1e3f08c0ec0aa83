"""Where a model runs: what the training loop asks of a backend, and the choice of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor, nn

from floatscope_trainer.config import OptimConfig, Precision, TrainConfig
from floatscope_trainer.emulated.backend import EmulatedBackend
from floatscope_trainer.te_backend import TransformerEngineBackend


class TrainingBackend(Protocol):
    """A model with its precision: emulated anywhere, or Transformer Engine on a GPU."""

    name: str
    device: torch.device

    @property
    def model(self) -> nn.Module: ...
    @property
    def layers(self) -> Mapping[str, nn.Module]: ...
    def autocast(self) -> AbstractContextManager[None]: ...
    def evaluating(self) -> AbstractContextManager[None]: ...
    def make_optimizer(self, config: OptimConfig, *, scaled_gradients: bool) -> torch.optim.Optimizer: ...
    def in_precision(
        self, precision: Precision, *, layers: Sequence[str] | None = None
    ) -> AbstractContextManager[None]: ...
    def scale_state(self) -> dict[str, Tensor]: ...


def make_backend(config: TrainConfig) -> EmulatedBackend | TransformerEngineBackend:
    """The backend that the config names, with its model. Raises BackendUnavailable saying what is missing."""
    if config.precision.backend == "transformer_engine":
        return TransformerEngineBackend(config)
    return EmulatedBackend(config)
