"""A plain PyTorch loop with floatscope: findings, clean checkpoints, stopping and resuming. CPU, seconds.

    pip install floatscope torch
    python examples/plain/train.py
    python examples/plain/train.py --steps 120     # goes on where the first has ended, in the same run

Checkpoints are kept in ./plain-checkpoints. The record and the verdict are written to a folder that is
printed at the end; with FLOATSCOPE_URL set they go to a server instead.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import floatscope

WORDS = 64
SAVE_EVERY = 20


def say(finding: Any) -> None:
    """Called for each finding that is new or has changed: here is the place for a message or a capture."""
    print(f"{finding.severity}: {finding.summary} (from step {finding.onset_step})")


def batch_of(step: int) -> Tensor:
    """Rows that count up, (16, 17)."""
    first = torch.randint(0, WORDS, (16, 1), generator=torch.Generator().manual_seed(step))
    return (first + torch.arange(17)) % WORDS


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains to ``--steps``, from the newest checkpoint in ``--folder`` if there is one."""
    parser = argparse.ArgumentParser(description="a plain loop, watched")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--folder", type=Path, default=Path("plain-checkpoints"))
    options = parser.parse_args(arguments)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(WORDS, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, WORDS))
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)

    saved = sorted(options.folder.glob("step*.pt"))
    state = torch.load(saved[-1], weights_only=True) if saved else None
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
    first_step = 0 if state is None else state["step"] + 1
    if first_step >= options.steps:
        print(f"{options.folder} holds {first_step} steps already; to go on: --steps {first_step + 60}")
        return

    with floatscope.watch(
        model,
        optimizer,
        run="plain",
        run_id=None if state is None else state["run_id"],  # the same id goes on in the same run
        config={"batch_size": 16, "optimizer": "AdamW"},
        on_finding=say,
    ) as monitor:
        for step in range(first_step, options.steps):
            ids = batch_of(step)
            inputs, labels = ids[:, :-1], ids[:, 1:]
            monitor.batch({"input_ids": inputs, "labels": labels})
            loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), labels.flatten())
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            rate = scheduler.get_last_lr()[0]
            scheduler.step()
            monitor.step(
                step, loss=loss, lr=rate, resumed=1 if state is not None and step == first_step else None
            )
            optimizer.zero_grad()

            if (step + 1) % SAVE_EVERY == 0 and monitor.is_clean(step) is not False:
                options.folder.mkdir(parents=True, exist_ok=True)
                torch.save(
                    {
                        "step": step,
                        "run_id": monitor.run_id,
                        "model": model.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "scheduler": scheduler.state_dict(),
                    },
                    options.folder / f"step{step:06}.pt",
                )
            if monitor.should_stop:  # a critical finding: say where to go back to, and end
                steps = [int(path.stem.removeprefix("step")) for path in options.folder.glob("step*.pt")]
                clean = max((saved_at for saved_at in steps if monitor.is_clean(saved_at)), default=None)
                print(f"stopped after step {step}; the last clean checkpoint is of step {clean}")
                break
        print(f"run {monitor.run_id}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
