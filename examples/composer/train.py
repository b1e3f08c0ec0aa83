"""MosaicML Composer with floatscope: a tiny network on the CPU, in seconds.

pip install floatscope mosaicml
python examples/composer/train.py
"""

from __future__ import annotations

from typing import Any

import torch
from composer import Trainer
from composer.models import ComposerModel
from torch import Tensor, nn
from torch.utils.data import DataLoader

from floatscope.integrations.composer import FloatscopeCallback

WORDS = 64


class Next(ComposerModel):  # type: ignore[misc]
    """Predicts the next word of rows that count up."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Embedding(WORDS, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, WORDS))

    def forward(self, batch: Tensor) -> Any:
        """Scores of the next word: (rows, 15, words)."""
        return self.net(batch[:, :-1])

    def loss(self, outputs: Tensor, batch: Tensor) -> Tensor:
        """Mean cross entropy, in nats."""
        return nn.functional.cross_entropy(outputs.flatten(0, 1), batch[:, 1:].flatten())


def main() -> None:
    """Trains 16 batches of 2 micro-batches."""
    torch.manual_seed(0)
    rows: Any = list((torch.arange(16) + torch.randint(0, WORDS, (128, 1))) % WORDS)
    model = Next()
    trainer = Trainer(
        model=model,
        train_dataloader=DataLoader(rows, batch_size=8),
        max_duration="16ba",
        device="cpu",
        device_train_microbatch_size=4,
        optimizers=torch.optim.AdamW(model.parameters(), lr=3e-3),
        progress_bar=False,
        callbacks=[FloatscopeCallback(run="tiny-composer", stop=True)],
    )
    trainer.fit()
    trainer.close()


if __name__ == "__main__":
    main()
