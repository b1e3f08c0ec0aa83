"""Accelerate with floatscope: a tracker for what the loop logs, that also watches the prepared model.

pip install floatscope accelerate torch
python examples/accelerate/train.py                 # or: accelerate launch examples/accelerate/train.py
"""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

from floatscope.integrations.accelerate import FloatscopeTracker

WORDS = 64


def main() -> None:
    """Trains 16 steps of 2 micro-batches."""
    torch.manual_seed(0)
    tracker = FloatscopeTracker(run="tiny-accelerate")
    accelerator = Accelerator(cpu=True, log_with=[tracker], gradient_accumulation_steps=2)
    accelerator.init_trackers("tiny", config={"width": 32})
    net = nn.Sequential(nn.Embedding(WORDS, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, WORDS))
    rows: Any = list((torch.arange(16) + torch.randint(0, WORDS, (128, 1))) % WORDS)
    model, optimizer, loader = accelerator.prepare(
        net, torch.optim.AdamW(net.parameters(), lr=3e-3), DataLoader(rows, batch_size=4)
    )
    tracker.attach(model, optimizer, accelerator=accelerator)
    steps = 0
    for batch in loader:
        with accelerator.accumulate(model):
            tracker.batch(batch)
            scores = model(batch[:, :-1])
            loss = nn.functional.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            tracker.step(loss=loss)  # counts where accelerator.sync_gradients is true
        if accelerator.sync_gradients:
            steps += 1
            if steps % 8 == 0:
                right = scores.argmax(-1) == batch[:, 1:]
                accelerator.log({"accuracy": right.float().mean().item()}, step=steps)
                if tracker.should_stop():
                    break
    accelerator.end_training()


if __name__ == "__main__":
    main()
