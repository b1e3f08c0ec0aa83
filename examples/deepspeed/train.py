"""DeepSpeed with floatscope: ZeRO 1 in fp16 with a loss scale, on GPUs or on the CPU.

DeepSpeed refuses fp16 on CPUs without instructions for it; there the example trains in bf16, which has no
loss scale.

    pip install floatscope deepspeed torch
    DS_ACCELERATOR=cpu python examples/deepspeed/train.py      # one process, on the CPU
    deepspeed examples/deepspeed/train.py                      # all GPUs of this machine

The record and the verdict are written to a folder that is printed at the end; with FLOATSCOPE_URL set they go
to a server instead.
"""

from __future__ import annotations

import os

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from torch import Tensor, nn

from floatscope.integrations.deepspeed import watch_engine

FP16 = {"fp16": {"enabled": True, "initial_scale_power": 12}}
BF16 = {"bf16": {"enabled": True}}
WORDS = 64
STEPS = 30
ACCUMULATE = 2
CONFIG = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": ACCUMULATE,
    "gradient_clipping": 1.0,
    "zero_allow_untested_optimizer": True,
    "zero_optimization": {"stage": 1},
    "steps_per_print": STEPS,
}


class Model(nn.Module):
    """Returns its loss, as models for DeepSpeed often do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Embedding(WORDS, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, WORDS)
        )

    def forward(self, ids: Tensor) -> Tensor:
        """ids: (rows, length), predicted from the left."""
        logits = self.layers(ids[:, :-1]).flatten(0, 1).float()
        return nn.functional.cross_entropy(logits, ids[:, 1:].flatten())


def main() -> None:
    """Trains 30 steps of two micro-batches."""
    for name, value in (
        ("RANK", "0"),
        ("LOCAL_RANK", "0"),
        ("WORLD_SIZE", "1"),
        ("MASTER_ADDR", "127.0.0.1"),
    ):
        os.environ.setdefault(name, value)  # without a launcher: a job of one
    os.environ.setdefault("MASTER_PORT", "29500")
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    config = CONFIG | (FP16 if get_accelerator().is_fp16_supported() else BF16)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)

    with watch_engine(engine, run="tiny-deepspeed", config=config) as monitor:
        for _ in range(STEPS * ACCUMULATE):
            ids = (torch.randint(0, WORDS, (8, 1)) + torch.arange(17)) % WORDS  # rows that count up
            ids = ids.to(engine.device)
            monitor.batch({"input_ids": ids})
            loss = engine(ids)
            engine.backward(loss)
            engine.step()
            if monitor.should_stop:
                break


if __name__ == "__main__":
    main()
