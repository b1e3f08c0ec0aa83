"""A loop on megatron-core with floatscope.

    pip install floatscope megatron-core torch
    torchrun --nproc-per-node 1 examples/megatron/train.py          # needs a GPU, as megatron-core does

With Megatron-LM's own loop nothing of this is needed: call
``floatscope.integrations.megatron.watch_pretrain(run="...")`` before ``pretrain(...)``.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from floatscope.integrations.megatron import watch

WORDS = 64
LENGTH = 16


def build() -> tuple[list[Any], Any]:
    """A GPT of two layers in bf16: the list of this rank's chunks, and its optimizer."""
    config = TransformerConfig(
        num_layers=2,
        hidden_size=32,
        num_attention_heads=2,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        bf16=True,
        params_dtype=torch.bfloat16,
        use_cpu_initialization=True,
        gradient_accumulation_fusion=False,
    )
    chunk = GPTModel(config, get_gpt_layer_local_spec(), WORDS, LENGTH).bfloat16().cuda()
    model = [DistributedDataParallel(config, DistributedDataParallelConfig(grad_reduce_in_fp32=True), chunk)]
    settings = OptimizerConfig(
        optimizer="adam", lr=3e-3, bf16=True, params_dtype=torch.bfloat16, clip_grad=1.0
    )
    return model, get_megatron_optimizer(settings, model)


def train(model: list[Any], optimizer: Any, *, steps: int, device: str) -> None:
    """Trains on rows that count up, and ends early where a finding asks for it."""
    places = torch.arange(LENGTH, device=device).expand(4, -1)
    mask = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool, device=device).triu(1)
    with watch(model, optimizer, run="tiny-megatron") as monitor:
        for _ in range(steps):
            ids = (
                torch.randint(0, WORDS, (4, 1), device=device) + torch.arange(LENGTH + 1, device=device)
            ) % WORDS
            monitor.batch({"input_ids": ids[:, :-1], "labels": ids[:, 1:]})
            model[0].zero_grad_buffer()
            optimizer.zero_grad()
            loss: Tensor = model[0](ids[:, :-1], places, mask, labels=ids[:, 1:]).float().mean()
            optimizer.scale_loss(loss).backward()
            model[0].finish_grad_sync()
            monitor.log({"loss": loss})
            optimizer.step()  # ends the step
            if monitor.should_stop:  # on several ranks: decide on one and tell the others
                break


def main() -> None:
    """One process for each GPU, started by torchrun."""
    torch.distributed.init_process_group()
    torch.cuda.set_device(torch.distributed.get_rank() % torch.cuda.device_count())
    parallel_state.initialize_model_parallel()
    model_parallel_cuda_manual_seed(0)
    train(*build(), steps=30, device="cuda")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
