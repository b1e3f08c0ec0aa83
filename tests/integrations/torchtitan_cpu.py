"""Lets the real torchtitan Trainer run on a machine without a GPU.

Real: Trainer and its training loop, model, optimizers, schedulers, clipping, metrics, FSDP. Stand-ins: triton
while torchtitan is imported (its kernels are not called), what it asks the device about its memory, and
``torch.distributed.set_timeout``, which only nightly builds of torch have. Attention is torchtitan's own
``ScaledDotProductAttention``, since FlexAttention has no backward pass on the CPU.
"""

from __future__ import annotations

import importlib
import sys
import types
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integrations.stand_ins import empty_packages

VOCABULARY = 2048  # of torchtitan's debug model

_MEMORY: dict[str, Any] = {
    "get_device_name": lambda *args: "CPU",
    "current_device": lambda: 0,
    "set_device": lambda device: None,
    "device_count": lambda: 1,
    "get_device_properties": lambda *args: types.SimpleNamespace(total_memory=2**33),
    "reset_peak_memory_stats": lambda *args: None,
    "empty_cache": lambda: None,
    "memory_stats": lambda *args: {},
    "synchronize": lambda *args: None,
}


def import_torchtitan() -> Any:
    """The module ``torchtitan.trainer``."""
    for name in ("torch._utils", "torch.utils.flop_counter", "torch._functorch.partitioners"):
        importlib.import_module(name)  # those that look for triton themselves must not find the stand-in
    with pytest.MonkeyPatch.context() as patch, empty_packages("triton"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr("torch._utils._get_available_device_type", lambda: "cpu")
        patch.setattr("torch._utils._get_device_module", lambda kind: types.SimpleNamespace(**_MEMORY))
        trainer = importlib.import_module("torchtitan.trainer")
        importlib.import_module("torchtitan.models.llama3.config_registry")
    return trainer


def config_of(folder: Path, *, steps: int, log_freq: int, accumulate: int = 1) -> Any:
    """The debug model with two layers, on random tokens."""
    registry: Any = sys.modules["torchtitan.models.llama3.config_registry"]
    attention: Any = sys.modules["torchtitan.models.common.attention"]
    tokenizer, loader = _parts()
    config = registry.llama3_debugmodel()
    config.dump_folder = str(folder)
    config.tokenizer, config.dataloader = tokenizer.Config(), loader.Config()
    config.training.local_batch_size, config.training.seq_len = 2, 32
    config.training.global_batch_size = 2 * accumulate
    config.training.steps, config.training.disable_cuda_graphs = steps, True
    config.metrics.log_freq = log_freq
    config.checkpoint.enable = False
    config.debug.seed = 3
    model = config.model_spec.model
    model.layers = model.layers[:2]
    for layer in model.layers:
        layer.attention.inner_attention = attention.ScaledDotProductAttention.Config()
    return config


def _parts() -> tuple[Any, Any]:
    tokenizers: Any = importlib.import_module("torchtitan.components.tokenizer")
    loaders: Any = importlib.import_module("torchtitan.components.dataloader")

    class NoTokenizer(tokenizers.BaseTokenizer):  # type: ignore[misc]
        @dataclass(kw_only=True, slots=True)
        class Config(tokenizers.BaseTokenizer.Config):  # type: ignore[misc]
            pass

        def __init__(self, config: Any, **settings: Any) -> None:
            super().__init__()

        def encode(self, *args: Any, **kwargs: Any) -> list[int]:
            return []

        def decode(self, *args: Any, **kwargs: Any) -> str:
            return ""

        def get_vocab_size(self) -> int:
            return VOCABULARY

    class RandomTokens(loaders.BaseDataLoader):  # type: ignore[misc]
        @dataclass(kw_only=True, slots=True)
        class Config(loaders.BaseDataLoader.Config):  # type: ignore[misc]
            pass

        def __init__(self, config: Any, *, seq_len: int, local_batch_size: int, **settings: Any) -> None:
            self._shape = (local_batch_size, seq_len)

        def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
            random = torch.Generator().manual_seed(0)
            rows, length = self._shape
            while True:
                ids = torch.randint(0, VOCABULARY, (rows, length + 1), generator=random)
                positions = torch.arange(length).expand(rows, -1)
                yield {"input": ids[:, :-1], "positions": positions}, ids[:, 1:]

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            pass

    return NoTokenizer, RandomTokens
