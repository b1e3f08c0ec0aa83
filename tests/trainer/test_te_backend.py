"""The Transformer Engine backend against a fake of its API: what is called, with what, in which order."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from floatscope_trainer import te_backend
from floatscope_trainer.checkpoint import load_checkpoint
from floatscope_trainer.data import CharText
from floatscope_trainer.emulated.scaling import DelayedScalingState
from floatscope_trainer.te_backend import BackendUnavailable, TransformerEngineBackend
from floatscope_trainer.training import Training
from tests.trainer.small_runs import take, tiny_config, tiny_text


class FakeTransformerEngine:
    """Enough of transformer_engine.pytorch, on the CPU, that notes what happens."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.inside = 0
        fake = self

        class Linear(nn.Linear):
            def __init__(self, i: int, o: int, *, bias: bool, params_dtype: torch.dtype, device: Any) -> None:
                assert device == te_backend.DEVICE
                super().__init__(i, o, bias=bias, dtype=params_dtype)
                history = torch.zeros(4, 3)
                self.fp8_meta = {
                    "scaling_fwd": DelayedScalingState(scale=torch.ones(3), amax_history=history)
                }

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                fake.events.append(("forward", fake.inside))
                if x.requires_grad:
                    note = partial(fake.note, "backward")
                    x.register_hook(note)  # type: ignore[no-untyped-call]
                self.fp8_meta["scaling_fwd"].amax_history[0] += 1
                return super().forward(x)

        @contextmanager
        def autocast(*, enabled: bool, recipe: Any = None) -> Iterator[None]:
            fake.inside, before = int(enabled), fake.inside
            fake.events.append(("autocast", enabled, recipe))
            yield
            fake.inside = before

        class FusedAdam(torch.optim.AdamW):
            def __init__(self, groups: Any, *, adam_w_mode: bool, master_weights: bool, **rest: Any) -> None:
                fake.events.append(("FusedAdam", adam_w_mode, master_weights))
                super().__init__(groups, **rest)

        self.pytorch = SimpleNamespace(Linear=Linear, autocast=autocast)
        self.optimizers = SimpleNamespace(FusedAdam=FusedAdam)
        self.recipe = SimpleNamespace(
            Format=SimpleNamespace(HYBRID="HYBRID"),
            DelayedScaling=lambda **kw: ("DelayedScaling", kw),
            Float8CurrentScaling=lambda: ("Float8CurrentScaling", {}),
            Float8BlockScaling=lambda: ("Float8BlockScaling", {}),
            MXFP8BlockScaling=lambda: ("MXFP8BlockScaling", {}),
        )

    def note(self, what: str, grad: torch.Tensor) -> None:
        """A hook that notes where it runs."""
        self.events.append((what, self.inside))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeTransformerEngine:
    made = FakeTransformerEngine()
    for name, part in {
        "transformer_engine": ModuleType("transformer_engine"),
        "transformer_engine.pytorch": made.pytorch,
        "transformer_engine.pytorch.optimizers": made.optimizers,
        "transformer_engine.common": ModuleType("transformer_engine.common"),
        "transformer_engine.common.recipe": made.recipe,
    }.items():
        monkeypatch.setitem(sys.modules, name, part)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *a: (9, 0))
    monkeypatch.setattr(te_backend, "DEVICE", torch.device("cpu"))
    return made


def train(text: CharText, steps: int, **config: Any) -> Training:
    made = tiny_config(backend="transformer_engine", **config)
    training = Training(made, backend=TransformerEngineBackend(made), text=text)
    take(training, steps)
    return training


def test_backward_runs_outside_the_autocast(fake: FakeTransformerEngine) -> None:
    train(tiny_text(), 1)
    forwards = [event for event in fake.events if event[0] == "forward"]
    backwards = [event for event in fake.events if event[0] == "backward"]
    assert forwards == [("forward", 1)] * 8
    assert backwards == [("backward", 0)] * 8


def test_recipe_and_optimizer_are_the_librarys(fake: FakeTransformerEngine) -> None:
    train(tiny_text(), 1, margin=1)
    kw = {"margin": 1, "fp8_format": "HYBRID", "amax_history_len": 4, "amax_compute_algo": "max"}
    assert ("autocast", True, ("DelayedScaling", kw)) in fake.events
    assert ("FusedAdam", True, True) in fake.events


@pytest.mark.parametrize(
    ("recipe", "name"),
    [("current", "Float8CurrentScaling"), ("block", "Float8BlockScaling"), ("mxfp8", "MXFP8BlockScaling")],
)
def test_other_recipes(fake: FakeTransformerEngine, recipe: str, name: str) -> None:
    train(tiny_text(), 1, recipe=recipe)
    assert ("autocast", True, (name, {})) in fake.events


def test_bf16_runs_without_fp8(fake: FakeTransformerEngine) -> None:
    training = train(tiny_text(), 1, precision="bf16")
    assert ("autocast", False, None) in fake.events
    assert {p.dtype for p in training.model.parameters()} == {torch.bfloat16}


def test_layers_of_the_precision_map_leave_fp8(fake: FakeTransformerEngine) -> None:
    training = train(tiny_text(), 1, precision_map="first=1")
    forwards = [event[1] for event in fake.events if event[0] == "forward"]
    assert forwards == [0, 0, 0, 0, 1, 1, 1, 1]
    names = [name for name, _ in training.model.named_parameters() if "blocks.0.mlp" in name]
    assert names == ["blocks.0.mlp_norm.weight", "blocks.0.mlp.fc1.weight", "blocks.0.mlp.fc2.weight"]


def test_evaluation_empties_the_open_rows(fake: FakeTransformerEngine) -> None:
    training = train(tiny_text(), 0)
    training.evaluate()
    histories = [t for name, t in training.backend.scale_state().items() if name.endswith("amax_history")]
    assert len(histories) == 8
    assert all(t[0].abs().max() == 0 for t in histories)


def test_checkpoint_brings_back_scales_that_do_not_exist_yet(
    fake: FakeTransformerEngine, tmp_path: Path
) -> None:
    first = train(tiny_text(), 2)
    name = "blocks.0.attn.qkv/scaling_fwd.scale"
    first.backend.scale_state()[name].fill_(7.0)
    first.optimizer.param_groups[0]["step"] = 2  # where FusedAdam counts
    first.save(tmp_path / "a.safetensors", run_id="a")
    second = train(tiny_text(), 0)
    layers = second.backend.layers
    hidden = {n: layer.__dict__.pop("fp8_meta") for n, layer in layers.items()}
    for layer_name, layer in layers.items():
        layer.register_forward_pre_hook(lambda m, args, n=layer_name: setattr(m, "fp8_meta", hidden[n]))
    second.restore(load_checkpoint(tmp_path / "a.safetensors"))
    assert second.backend.scale_state()[name].tolist() == [7.0] * 3
    assert second.optimizer.param_groups[0]["step"] == 2


def test_without_the_package_it_says_what_to_install() -> None:
    with pytest.raises(BackendUnavailable, match="pip install 'transformer_engine"):
        TransformerEngineBackend(tiny_config())


def test_without_a_gpu_it_says_which_is_needed(
    fake: FakeTransformerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BackendUnavailable, match=r"compute capability 8\.9 or more .* no GPU is visible"):
        TransformerEngineBackend(tiny_config())


def test_on_an_old_gpu_it_names_its_capability(
    fake: FakeTransformerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *a: (8, 0))
    with pytest.raises(BackendUnavailable, match=r"this GPU has 8\.0"):
        TransformerEngineBackend(tiny_config())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"precision": "fp32"}, "trains in fp8 or bf16"),
        ({"cast": "rtz"}, "property of the hardware"),
        ({"batch": 3, "passes": 1}, "--batch times --context"),
    ],
)
def test_what_the_hardware_cannot_do(
    fake: FakeTransformerEngine, config: dict[str, Any], message: str
) -> None:
    made = tiny_config(**config)
    if config.get("batch") == 3:
        made = replace(made, model=replace(made.model, context=13))
    with pytest.raises(BackendUnavailable, match=message):
        TransformerEngineBackend(made)
