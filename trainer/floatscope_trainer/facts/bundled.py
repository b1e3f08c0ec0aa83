"""Short runs of the bundled trainer, as facts need them: the same text, seed and order each time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor, nn

from floatscope_trainer.config import ModelConfig, OptimConfig, PrecisionConfig, TrainConfig
from floatscope_trainer.data import CharText, bundled_text
from floatscope_trainer.emulated.backend import EmulatedBackend
from floatscope_trainer.faults.catalog import make_fault
from floatscope_trainer.faults.fault import Scene
from floatscope_trainer.faults.injection import parse_injection
from floatscope_trainer.training import Training

STEPS = 60
FAULT_AT = 40
TEXT_CHARACTERS = 60_000


@dataclass(frozen=True)
class Run:
    """Losses of every step, in nats, and the worst underflow of each tensor from the fault on, in percent."""

    loss: tuple[float, ...]
    underflow_pct: dict[str, float]

    @property
    def nonfinite(self) -> int:
        """Steps whose loss is NaN or infinite."""
        return sum(not math.isfinite(loss) for loss in self.loss)


@lru_cache(maxsize=1)
def text() -> CharText:
    """The beginning of Python's own help topics."""
    return CharText(bundled_text()[:TEXT_CHARACTERS])


def config(*, steps: int = STEPS, precision: PrecisionConfig | None = None) -> TrainConfig:
    """A small GPT: 2 layers, 64 wide, 256 tokens a step."""
    model = ModelConfig(layers=2, width=64, heads=2, hidden=160, context=64, vocab_size=text().vocab_size)
    wanted = precision or PrecisionConfig(amax_history_len=16)
    return TrainConfig(
        model=model, precision=wanted, optim=OptimConfig(lr=2e-3, warmup=10), steps=steps, batch=4, seed=0
    )


def training(made: TrainConfig, injections: Sequence[str] = ()) -> Training:
    """A run at its first step, with faults as `floatscope train --inject` writes them."""
    backend = EmulatedBackend(made)
    run = Training(made, backend=backend, text=text())
    scene = Scene(
        model=backend.model,
        optimizer=run.optimizer,
        layers=dict(backend.layers),
        quantizers=backend.quantizers(),
        vocab_size=made.model.vocab_size,
        seed=made.seed,
    )
    run.faults = [make_fault(parse_injection(i), scene, first_step=0, steps=made.steps) for i in injections]
    return run


def trained(*injections: str, steps: int = STEPS) -> Run:
    """Trains and looks at every cast from step FAULT_AT on."""
    torch.manual_seed(0)
    run = training(config(steps=steps), injections)
    backend = run.backend
    assert isinstance(backend, EmulatedBackend)
    names: dict[nn.Module, str] = {module: name for name, module in backend.layers.items()}
    worst: dict[str, float] = {}

    def look(
        module: nn.Module, role: str, before: Tensor, after: Tensor, scale: Tensor | None, fmt: str
    ) -> None:
        if run.next_step >= FAULT_AT:
            alive = before != 0
            lost = 100.0 * float(((after == 0) & alive).sum()) / max(float(alive.sum()), 1.0)
            name = f"{names[module]}/{role}"
            worst[name] = max(worst.get(name, 0.0), lost)

    backend.global_state.register_inspector(look)
    losses = tuple(run.step(see_batch=lambda batch: None).loss for _ in range(steps))
    return Run(losses, worst)


@lru_cache(maxsize=4)
def healthy(steps: int = STEPS) -> Run:
    """The run without a fault."""
    return trained(steps=steps)


def differences(run: Run, other: Run) -> list[float]:
    """Loss of `run` minus that of `other`, step by step from FAULT_AT on, in nats."""
    pairs = zip(run.loss[FAULT_AT:], other.loss[FAULT_AT:], strict=True)
    return [a - b for a, b in pairs]


def in_fp32(made: TrainConfig) -> TrainConfig:
    """The same run without FP8."""
    return replace(made, precision=PrecisionConfig(precision="fp32"))
