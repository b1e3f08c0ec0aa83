"""torchtitan with floatscope: torchtitan's own start script and one line more.

    pip install floatscope torchtitan
    torchrun --nproc-per-node 8 examples/torchtitan/train.py --module llama3 --config llama3_debugmodel

It needs what torchtitan needs: GPUs, and a nightly build of torch for its newest releases.
"""

from __future__ import annotations

from typing import Any

import torch
from torchtitan.config import ConfigManager
from torchtitan.tools.logging import init_logger

from floatscope.integrations.torchtitan import watch_trainer


def train(config: Any) -> None:
    """config: a ``Trainer.Config``."""
    trainer = config.build()
    try:
        watch_trainer(trainer, run="titan")
        trainer.train()
    finally:
        trainer.close()  # ends the run, as crashed if something was raised
    torch.distributed.destroy_process_group()


def main() -> None:
    """The configuration comes from torchtitan's command line."""
    init_logger()
    train(ConfigManager().parse_args())


if __name__ == "__main__":
    main()
