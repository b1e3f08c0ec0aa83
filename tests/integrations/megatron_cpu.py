"""Lets real megatron-core train on a machine without a GPU.

Real: parallel_state on gloo, GPTModel in its local form, DistributedDataParallel with its gradient buffers,
and every optimizer. Megatron writes ``device="cuda"`` into its code; inside ``on_cpu()`` that means the CPU.
The states of the GPU's random numbers are left out: there is no dropout.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
    from megatron.core.transformer.transformer_config import TransformerConfig

from tests.integrations.one_rank import gloo

LENGTH = 8
VOCABULARY = 32
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class _CpuForCuda(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        if "cuda" in str(given.get("device", "")):
            given["device"] = "cpu"
        if func is Tensor.cuda:
            return args[0]
        result = func(*args, **given)
        if func is Tensor.type and isinstance(result, str):
            return result.replace("torch.", "torch.cuda.")  # Megatron looks at a parameter's type by name
        return result


@contextlib.contextmanager
def on_cpu() -> Iterator[None]:
    """A job of one rank, whose "cuda" is the CPU."""
    with pytest.MonkeyPatch.context() as patch, gloo():
        patch.setattr(torch.cuda, "current_device", lambda: "cpu")
        patch.setattr(CudaRNGStatesTracker, "fork", lambda *args: contextlib.nullcontext())
        parallel_state.initialize_model_parallel()
        try:
            with _CpuForCuda():
                yield
        finally:
            parallel_state.destroy_model_parallel()


def model_and_optimizer(dtype: str = "fp32", *, is_distributed: bool = False, clip_grad: float = 0.5) -> Any:
    """The list of one wrapped GPT chunk with two layers, and a MegatronOptimizer for it."""
    torch.manual_seed(0)
    precision: dict[str, Any] = {
        "bf16": dtype == "bf16",
        "fp16": dtype == "fp16",
        "params_dtype": _DTYPES[dtype],
    }
    config = TransformerConfig(
        num_layers=2,
        hidden_size=16,
        num_attention_heads=2,
        use_cpu_initialization=True,
        gradient_accumulation_fusion=False,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        bias_dropout_fusion=False,
        **precision,
    )
    chunk = GPTModel(config, get_gpt_layer_local_spec(), VOCABULARY, LENGTH).to(_DTYPES[dtype])
    ddp = DistributedDataParallelConfig(use_distributed_optimizer=is_distributed, grad_reduce_in_fp32=True)
    model = [DistributedDataParallel(config, ddp, chunk)]
    settings = OptimizerConfig(
        optimizer="adam",
        lr=1e-3,
        clip_grad=clip_grad,
        use_distributed_optimizer=is_distributed,
        initial_loss_scale=2.0**10,
        hysteresis=1,
        **precision,
    )
    return model, get_megatron_optimizer(settings, model)


def batch(step: int) -> Tensor:
    """Token ids, (2, LENGTH)."""
    return torch.randint(0, VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(step))


def loss_of(model: Any, ids: Tensor) -> Tensor:
    """Predict the ids themselves."""
    places = torch.arange(LENGTH).expand_as(ids)
    mask = torch.ones(1, 1, LENGTH, LENGTH).triu(1) > 0
    loss: Tensor = model[0](ids, places, mask, labels=ids)
    return loss.float().mean()


def backward(model: Any, optimizer: Any, loss: Tensor) -> None:
    """As in Megatron's train_step: zeroed buffers, a scaled loss, reduced gradients."""
    torch.autograd.backward(optimizer.scale_loss(loss))
    model[0].finish_grad_sync()


def zero(model: Any, optimizer: Any) -> None:
    """Before the first micro-batch of a step."""
    model[0].zero_grad_buffer()
    optimizer.zero_grad()
