"""One of two processes that train the small model with ZeRO 1: zero_rank.py FOLDER, started by torchrun.

It trains unwatched, then watched, and fails where the weights differ.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
from torch import Tensor

from floatscope.integrations.deepspeed import watch_engine
from tests.agent.training import batch, loss_of, small_model
from tests.integrations.one_rank import flat_weights, settings

STEPS = 3


def train(rank: int, folder: Path | None) -> Tensor:
    """The weights after a few steps, each rank on batches of its own."""
    model = small_model()
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 6,
        "steps_per_print": 10_000,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": 1},
        "bf16": {"enabled": True},
    }
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    engine = deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]
    if folder is not None:
        watch_engine(engine, run="zero", run_id="zero", **settings(folder / str(rank)))
    for step in range(STEPS):
        engine.backward(loss_of(engine, batch(10 * step + rank)))
        engine.step()
    return flat_weights(engine.module)


def main() -> None:
    """The run ends with the process."""
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # built by a C++ compiler on first use
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    rank = int(os.environ["RANK"])
    expected = train(rank, None)
    if not torch.equal(train(rank, Path(sys.argv[1])), expected):
        raise SystemExit(f"rank {rank}: the weights differ")


if __name__ == "__main__":
    main()
