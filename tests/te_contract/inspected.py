"""A model on Transformer Engine's debug API under the agent, for the tests of the feature."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

import floatscope
from tests.te_contract.te_cpu import TransformerEngine

WIDTH = 32
ORDER = ["0/input", "0/weight", "2/input", "2/weight", "2/grad_output", "0/grad_output"]


def linear(engine: TransformerEngine, width: int, out: int, **options: Any) -> Any:
    return engine.te.Linear(width, out, bias=False, device="cpu", params_dtype=torch.bfloat16, **options)


def two_layers(engine: TransformerEngine) -> Any:
    return torch.nn.Sequential(linear(engine, WIDTH, 64), torch.nn.GELU(), linear(engine, 64, 16))


class Watched:
    """A model trained on random data under the agent; ``finish`` gives what was logged."""

    def __init__(
        self, engine: TransformerEngine, model: Any, path: Path, *, recipe: Any = None, **settings: Any
    ) -> None:
        self.engine = engine
        self.model = model
        self.recipe = recipe if recipe is not None else engine.recipes.Float8CurrentScaling()
        self._path = path / "run.jsonl"
        options: dict[str, Any] = {"strict": True, "gpu": False, "stats_every": 1, **settings}
        self.monitor = floatscope.watch(model, run="te", mode="local", log_path=self._path, **options)

    def forward_backward(self, *, factor: float = 1.0, args: tuple[Any, ...] = ()) -> None:
        x = factor * torch.randn(16, WIDTH, dtype=torch.bfloat16)
        with self.engine.te.autocast(enabled=True, recipe=self.recipe):
            out = self.model(x.requires_grad_(), *args)
        out.float().pow(2).mean().backward()

    def step(self, **scalars: Any) -> None:
        self.forward_backward()
        self.monitor.step(**scalars)

    def finish(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        self.monitor.finish()
        head, *rows = [json.loads(line) for line in self._path.read_text().splitlines()]
        return head["run"], rows


def inspected(row: dict[str, Any]) -> set[str]:
    """Tensors with a statistic that only whole tensors give."""
    return {name for name, stats in row.get("tensors", {}).items() if "sqnr_db" in stats}
