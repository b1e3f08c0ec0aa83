"""Lightning with floatscope: a tiny network on the CPU, in seconds.

pip install floatscope lightning torch
python examples/lightning/train.py
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader

from floatscope.integrations.lightning import FloatscopeCallback

WORDS = 64


class Next(LightningModule):  # type: ignore[misc]
    """Predicts the next word of rows that count up."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Embedding(WORDS, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, WORDS))

    def loss(self, batch: Tensor) -> Tensor:
        """Mean cross entropy, in nats."""
        return nn.functional.cross_entropy(self.net(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        """See Lightning."""
        return self.loss(batch)

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        """Logs val_loss, which floatscope records as eval_loss."""
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self) -> Any:
        """See Lightning."""
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main() -> None:
    """Trains 2 epochs of 16 steps with gradient accumulation and clipping."""
    torch.manual_seed(0)
    rows: Any = list((torch.arange(16) + torch.randint(0, WORDS, (128, 1))) % WORDS)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            max_epochs=2,
            accumulate_grad_batches=2,
            gradient_clip_val=1.0,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
            callbacks=[FloatscopeCallback(run="tiny-lightning", stop=True)],
        )
        trainer.fit(Next(), DataLoader(rows, batch_size=4), DataLoader(rows[:16], batch_size=4))


if __name__ == "__main__":
    main()
