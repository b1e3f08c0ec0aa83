"""The bundled trainer on the real package: it trains, resumes to the bit, and the emulation follows it."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import floatscope
from floatscope_trainer import te_backend
from floatscope_trainer.backends import make_backend
from floatscope_trainer.checkpoint import load_checkpoint
from floatscope_trainer.config import ModelConfig, OptimConfig, PrecisionConfig, TrainConfig
from floatscope_trainer.data import CharText, bundled_text
from floatscope_trainer.training import Training

if TYPE_CHECKING:
    from tests.te_contract.te_cpu import TransformerEngine

pytestmark = [pytest.mark.te, pytest.mark.filterwarnings("ignore")]

STEPS = 8
LOSS_TOLERANCE = 2e-3
"""The backend keeps weights and residual stream in bf16, the emulation in float32; FP8 is alike in both."""


class AdamW(torch.optim.AdamW):
    """In place of FusedAdam, whose constructor needs CUDA."""

    def __init__(self, groups: Any, *, adam_w_mode: bool, master_weights: bool, **rest: Any) -> None:
        super().__init__(groups, **rest)


@pytest.fixture
def text(engine: TransformerEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CharText:
    monkeypatch.setenv("FLOATSCOPE_SPOOL_DIR", str(tmp_path / "spool"))
    optimizers = importlib.import_module("transformer_engine.pytorch.optimizers")
    monkeypatch.setattr(optimizers, "FusedAdam", AdamW)
    monkeypatch.setattr(te_backend, "DEVICE", torch.device("cpu"))
    torch.set_num_threads(1)
    return CharText(bundled_text()[:50_000])


def training(text: CharText, *, backend: Any = "transformer_engine", **precision: Any) -> Training:
    config = TrainConfig(
        model=ModelConfig(layers=2, width=64, heads=2, hidden=128, context=32, vocab_size=text.vocab_size),
        precision=PrecisionConfig(backend=backend, **{"amax_history_len": 4, **precision}),
        optim=OptimConfig(warmup=4, decay_steps=STEPS),
        steps=2 * STEPS,
    )
    return Training(config, backend=make_backend(config), text=text)


def losses(run: Training, steps: int) -> list[float]:
    return [run.step(see_batch=lambda batch: None).loss for _ in range(steps)]


@pytest.mark.parametrize("recipe", ["delayed", "current"])
def test_emulation_follows_transformer_engine(text: CharText, recipe: str) -> None:
    real, emulated = training(text, recipe=recipe), training(text, backend="emulated", recipe=recipe)
    assert losses(real, STEPS) == pytest.approx(losses(emulated, STEPS), abs=LOSS_TOLERANCE)
    ours, theirs = emulated.backend.scale_state(), real.backend.scale_state()
    assert ours.keys() == theirs.keys()
    assert bool(ours) == (recipe == "delayed")
    for name, tensor in theirs.items():
        assert tensor.shape == ours[name].shape
        torch.testing.assert_close(tensor, ours[name], rtol=0.3, atol=0)


def test_resume_continues_to_the_bit(text: CharText, engine: TransformerEngine, tmp_path: Path) -> None:
    run = training(text)
    losses(run, 3)
    run.save(tmp_path / "a.safetensors", run_id="a")
    expected = losses(run, 3)
    engine.manager.reset()  # its buffers are one per process: the resumed run would be a new one
    resumed = training(text)
    resumed.restore(load_checkpoint(tmp_path / "a.safetensors"))
    assert losses(resumed, 3) == expected


def test_evaluation_leaves_the_scale_state(text: CharText) -> None:
    run = training(text)
    losses(run, 2)
    before = {name: tensor.clone() for name, tensor in run.backend.scale_state().items()}
    assert run.evaluate() > 0
    assert all(torch.equal(before[name], tensor) for name, tensor in run.backend.scale_state().items())


def test_blocks_at_the_ends_stay_out_of_fp8(text: CharText) -> None:
    run = training(text, precision_map="first=1")
    losses(run, 2)
    assert {name.split(".")[1] for name in run.backend.scale_state()} == {"1"}


def test_recipes_without_state_are_inspected(text: CharText, tmp_path: Path) -> None:
    """The backend switches the debug API on for them, and the monitor sees what is cast."""
    run = training(text, recipe="current")
    path = tmp_path / "run.jsonl"
    monitor = floatscope.watch(
        run.backend.model, run="te", mode="local", log_path=path, strict=True, gpu=False, stats_every=2
    )
    for _ in range(3):
        losses(run, 1)
        monitor.step()
    monitor.finish()
    _, *rows = [json.loads(line) for line in path.read_text().splitlines()]
    seen = [{n for n, stats in row.get("tensors", {}).items() if "sqnr_db" in stats} for row in rows]
    wanted = {f"{name}/{role}" for name in run.backend.layers for role in ("input", "weight", "grad_output")}
    assert seen == [wanted, set(), wanted]
    assert (tmp_path / "spool" / "te_debug").is_dir()
