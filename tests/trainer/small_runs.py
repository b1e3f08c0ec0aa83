"""Runs small enough for tests: a few steps take milliseconds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from floatscope_trainer.config import ModelConfig, OptimConfig, PrecisionConfig, TrainConfig
from floatscope_trainer.data import CharText, bundled_text
from floatscope_trainer.emulated.backend import EmulatedBackend
from floatscope_trainer.emulated.linear import EmulatedLinear
from floatscope_trainer.faults.catalog import make_fault
from floatscope_trainer.faults.fault import Scene
from floatscope_trainer.faults.injection import parse_injection
from floatscope_trainer.training import StepRecord, Training

TINY = ModelConfig(layers=2, width=32, heads=2, hidden=48, context=16)
HISTORY = 4
STEPS = 12


class RecordingMonitor:
    """Keeps what a run reports; stands in for the agent."""

    def __init__(self) -> None:
        self.run_id = "chosen-by-the-agent"
        self.watched: dict[str, Any] = {}
        self.batches: list[Mapping[str, Any]] = []
        self.steps: list[dict[str, Any]] = []
        self.ending: tuple[str, str | None] | None = None

    def watch(self, model: Any, optimizer: Any = None, **config: Any) -> RecordingMonitor:
        self.watched = {"model": model, "optimizer": optimizer, **config}
        self.run_id = config["run_id"] or self.run_id
        return self

    def batch(self, batch: Mapping[str, Any], *, step: int | None = None) -> None:
        self.batches.append({**batch, "step": step})

    def step(self, step: int | None = None, **scalars: Any) -> None:
        self.steps.append({"step": step, **scalars})

    def finish(self, status: str = "finished", reason: str | None = None) -> None:
        self.ending = (status, reason)


@lru_cache(maxsize=1)
def tiny_text() -> CharText:
    """The start of the bundled text."""
    return CharText(bundled_text()[:20_000])


def tiny_config(
    *,
    steps: int = STEPS,
    seed: int = 0,
    passes: int = 1,
    batch: int = 2,
    eval_every: int = 0,
    optim: OptimConfig | None = None,
    init_loss_scale: float = 2.0**16,
    **precision: Any,
) -> TrainConfig:
    """A config; other keywords are fields of PrecisionConfig."""
    return TrainConfig(
        model=dataclasses.replace(TINY, vocab_size=tiny_text().vocab_size),
        precision=PrecisionConfig(**{"amax_history_len": HISTORY, **precision}),
        optim=optim or OptimConfig(warmup=2, decay_steps=steps),
        steps=steps,
        batch=batch,
        seed=seed,
        passes=passes,
        eval_every=eval_every,
        init_loss_scale=init_loss_scale,
    )


def tiny_training(*injections: str, **config: Any) -> Training:
    """A run with faults, at its first step; keywords as `tiny_config`."""
    made = tiny_config(**config)
    training = Training(made, backend=EmulatedBackend(made), text=tiny_text())
    scene = scene_of(training)
    training.faults = [
        make_fault(parse_injection(i), scene, first_step=0, steps=made.steps) for i in injections
    ]
    return training


def scene_of(training: Training) -> Scene:
    """What faults reach of a run."""
    backend = training.backend
    assert isinstance(backend, EmulatedBackend)
    return Scene(
        model=backend.model,
        optimizer=training.optimizer,
        layers=dict(backend.layers),
        quantizers=backend.quantizers(),
        vocab_size=training.config.model.vocab_size,
        seed=training.config.seed,
    )


def layer(training: Training, name: str) -> EmulatedLinear:
    """A linear layer by its name."""
    backend = training.backend
    assert isinstance(backend, EmulatedBackend)
    return backend.layers[name]


def take(training: Training, steps: int) -> list[StepRecord]:
    """Trains some steps."""
    return [training.step(see_batch=lambda batch: None) for _ in range(steps)]


def losses(records: Sequence[StepRecord]) -> list[float]:
    """The losses of steps."""
    return [record.loss for record in records]


def weights(training: Training) -> dict[str, torch.Tensor]:
    """A copy of all weights."""
    return {name: p.detach().clone() for name, p in training.model.named_parameters()}


def scales(training: Training) -> dict[str, torch.Tensor]:
    """A copy of the scale state."""
    return {name: t.clone() for name, t in training.backend.scale_state().items()}


def equal(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> bool:
    """Whether two sets of tensors are equal to the bit; NaN equals NaN."""
    return a.keys() == b.keys() and not different(a, b)


def different(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> list[str]:
    """Names of the tensors that are not equal to the bit."""
    return [n for n in a if not torch.equal(a[n].nan_to_num(nan=-1.25), b[n].nan_to_num(nan=-1.25))]


class Inspections:
    """What the quantizers show in the steps after it was made: tensor name -> the calls in order."""

    def __init__(self, training: Training) -> None:
        backend = training.backend
        assert isinstance(backend, EmulatedBackend)
        self._names = {module: name for name, module in backend.layers.items()}
        self.seen: dict[str, list[torch.Tensor]] = {}
        self.used: dict[str, list[torch.Tensor]] = {}
        self.scale: dict[str, list[torch.Tensor | None]] = {}
        self.fmt: dict[str, str] = {}
        self.handle = backend.global_state.register_inspector(self._inspect)

    def _inspect(
        self,
        module: torch.nn.Module,
        role: str,
        tensor: torch.Tensor,
        dequantized: torch.Tensor,
        scale: torch.Tensor | None,
        fmt: str,
    ) -> None:
        assert isinstance(module, EmulatedLinear)
        name = f"{self._names[module]}/{role}"
        self.seen.setdefault(name, []).append(tensor.clone())
        self.used.setdefault(name, []).append(dequantized.clone())
        self.scale.setdefault(name, []).append(None if scale is None else scale.clone())
        self.fmt[name] = fmt
