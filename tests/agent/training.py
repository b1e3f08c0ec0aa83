"""Small models and loops for the probes' tests, with what the agent logged of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import floatscope
from tests.agent.conftest import read_log

VOCABULARY = 11


def small_model(seed: int = 0, *, inplace: bool = True) -> Any:
    """Embedding, two linear layers around an activation that works in place, a norm."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Embedding(VOCABULARY, 8),
        nn.Linear(8, 16),
        nn.ReLU(inplace=inplace),
        nn.LayerNorm(16),
        nn.Linear(16, VOCABULARY),
    )


def batch(step: int, size: int = 6) -> Tensor:
    """Token ids, (size, 5)."""
    return torch.randint(0, VOCABULARY, (size, 5), generator=torch.Generator().manual_seed(step))


def backward(loss: Tensor) -> None:
    """``loss.backward()``, with types."""
    torch.autograd.backward(loss)


def loss_of(model: Any, ids: Tensor) -> Tensor:
    """Predict the ids themselves."""
    return nn.functional.cross_entropy(model(ids).flatten(0, 1).float(), ids.flatten())


@dataclass
class Recording:
    """A monitor writing to a file, and after the block what is in it."""

    monitor: floatscope.Monitor
    run: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def tensors(self, row: int, stat: str) -> dict[str, Any]:
        """One statistic of all tensors that have it."""
        found = self.rows[row].get("tensors", {})
        return {name: stats[stat] for name, stats in found.items() if stat in stats}


@contextmanager
def recording(path: Path, model: Any = None, optimizer: Any = None, **settings: Any) -> Iterator[Recording]:
    """Watches strictly, every step unless told otherwise, and reads the log at the end."""
    quick = {"stats_every": 1, "gpu": False, "strict": True, "mode": "local", "diagnose": False}
    options: dict[str, Any] = {**quick, **settings}
    log = path / "run.jsonl"
    found = Recording(floatscope.watch(model, optimizer, run="probes", log_path=log, **options))
    yield found
    found.monitor.finish()
    found.run, found.rows = read_log(log)


def train(
    model: Any,
    optimizer: torch.optim.Optimizer,
    monitor: floatscope.Monitor | None,
    *,
    steps: int = 3,
    step: Callable[[Any, torch.optim.Optimizer, Tensor], Tensor] | None = None,
) -> Tensor:
    """A plain loop; ``step`` replaces forward, backward and optimizer step. Returns all weights, flat."""
    for index in range(steps):
        ids = batch(index)
        if monitor is not None:
            monitor.batch({"input_ids": ids, "labels": ids})
        if step is not None:
            loss = step(model, optimizer, ids)
        else:
            loss = loss_of(model, ids)
            backward(loss)
            optimizer.step()
        if monitor is not None:
            monitor.step(loss=loss)
        optimizer.zero_grad()
    return torch.cat([p.detach().double().flatten() for p in model.parameters()])
