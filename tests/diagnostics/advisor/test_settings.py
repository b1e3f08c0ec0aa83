"""Every text of an advice is read by what it is for, as far as that runs here."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from floatscope_diagnostics.advisor.settings import whole_run
from floatscope_diagnostics.advisor.settings_megatron import megatron
from floatscope_diagnostics.advisor.settings_te import transformer_engine
from floatscope_diagnostics.advisor.settings_torchao import torchao
from floatscope_diagnostics.advisor.settings_trainer import floatscope_train, whole_recipe
from floatscope_trainer.options import make_parser
from floatscope_trainer.precision import linear_names, parse_precision_map
from tests.diagnostics.advisor.made_runs import LAYERS, run_info


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(32, 64)
        self.fc2 = nn.Linear(64, 32)
        self.odd = nn.Linear(32, 31)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.fc2(self.fc1(x))
        return out


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(32, 64)


@dataclass
class Called:
    entered: list[tuple[bool, Any]]


@pytest.fixture
def te(monkeypatch: pytest.MonkeyPatch) -> Called:
    """A stand-in for Transformer Engine that notes which autocasts are entered."""
    called = Called([])

    @contextlib.contextmanager
    def autocast(*, enabled: bool, recipe: Any = None) -> Iterator[None]:
        called.entered.append((enabled, recipe))
        yield

    package = types.ModuleType("transformer_engine")
    pytorch = types.ModuleType("transformer_engine.pytorch")
    common = types.ModuleType("transformer_engine.common")
    recipe = types.ModuleType("transformer_engine.common.recipe")
    pytorch.autocast = autocast  # type: ignore[attr-defined]
    package.pytorch = pytorch  # type: ignore[attr-defined]
    for name in ("Float8CurrentScaling", "Float8BlockScaling", "MXFP8BlockScaling"):
        setattr(recipe, name, type(name, (), {}))
    for module in (package, pytorch, common, recipe):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return called


def executed(text: str) -> dict[str, Any]:
    space: dict[str, Any] = {}
    exec(compile(text, "<settings>", "exec"), space)
    return space


def test_transformer_engine_runs_the_named_modules_outside_fp8(te: Called) -> None:
    space = executed(transformer_engine([("blocks.0.fc2", "bf16"), ("blocks.1.fc1", "mxfp8")]))
    model = Model()
    space["set_precision"](model)
    model.blocks[0](torch.zeros(1, 32))
    assert te.entered == [(False, None)]
    model.blocks[1](torch.zeros(1, 32))
    assert te.entered[1][0] is True
    assert type(te.entered[1][1]).__name__ == "MXFP8BlockScaling"


def test_transformer_engine_refuses_a_name_that_no_module_has(te: Called) -> None:
    space = executed(transformer_engine([("blocks.7.fc2", "bf16")]))
    with pytest.raises(ValueError, match=r"blocks\.7\.fc2"):
        space["set_precision"](Model())


def test_the_inspection_file_names_exactly_the_layers(te: Called) -> None:
    import re

    text = executed(transformer_engine([("blocks.1.fc2", "bf16"), ("it's.0.fc1", "bf16")]))["INSPECT_YAML"]
    section = yaml.safe_load(text)["floatscope_bf16_layers"]
    assert section["transformer_engine"] == {"DisableQuantizationLayer": {"enabled": True}}
    pattern = re.compile(section["layers"]["layer_name_regex_pattern"])
    assert pattern.match("model.blocks.1.fc2")
    assert pattern.match("it's.0.fc1")
    assert not pattern.match("blocks.11.fc2")
    assert not pattern.match("blocks.1.fc2.bias")


@pytest.mark.parametrize("name", ['a""";import_os;r"""', "it's\\", '"', "`id`$(id)"])
def test_no_name_of_a_layer_ends_the_text_around_it(te: Called, name: str) -> None:
    import re

    space = executed(transformer_engine([(name, "bf16")]))
    assert space["LAYERS"] == {name: None}
    section = yaml.safe_load(space["INSPECT_YAML"])["floatscope_bf16_layers"]
    assert re.fullmatch(section["layers"]["layer_name_regex_pattern"], name)
    compile(torchao([(name, "bf16")], "current"), "torchao", "exec")
    assert all(line.startswith("#") for line in megatron([(name, "bf16")], [name], "current").splitlines())


@pytest.mark.parametrize("recipe", ["current", "rowwise", "block", "mxfp8"])
def test_every_framework_has_a_text_for_the_whole_run(recipe: str) -> None:
    made = whole_run(recipe)
    for text in (made.transformer_engine, made.torchao):
        compile(text, "settings", "exec")
    lacking = [name for name, text in made.to_json().items() if text.count("\n") == text.count("#") == 1]
    assert lacking == {
        "rowwise": ["transformer_engine", "megatron", "floatscope_train"],
        "block": ["torchao"],
        "mxfp8": ["torchao"],
    }.get(recipe, [])


def test_torchao_converts_all_but_the_named(monkeypatch: pytest.MonkeyPatch) -> None:
    done: dict[str, str] = {}

    def convert(model: nn.Module, *, config: str, module_filter_fn: Any) -> nn.Module:
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear) and module_filter_fn(module, name):
                assert name not in done
                done[name] = config
        return model

    package, float8 = types.ModuleType("torchao"), types.ModuleType("torchao.float8")
    float8.convert_to_float8_training = convert  # type: ignore[attr-defined]
    float8.Float8LinearConfig = types.SimpleNamespace(from_recipe_name=str)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchao", package)
    monkeypatch.setitem(sys.modules, "torchao.float8", float8)
    space = executed(torchao([("blocks.0.fc2", "bf16"), ("blocks.1.fc1", "rowwise")], "current"))
    wrong = executed(torchao([("blocks.7.fc2", "bf16")], "current"))
    with pytest.raises(ValueError, match=r"blocks\.7\.fc2"):
        wrong["convert"](Model())
    assert done == {}, "nothing was converted"
    space["convert"](Model())
    assert done == {"blocks.0.fc1": "tensorwise", "blocks.1.fc2": "tensorwise", "blocks.1.fc1": "rowwise"}


def megatron_files(text: str) -> tuple[list[str], dict[str, Any]]:
    """Flags and the precision file of a text, as bash makes them."""
    script = text + '\nprintf "%s\\n" "${MEGATRON_ARGS[@]}"\n'
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, check=True)
        file = Path(folder) / "floatscope-precision.yaml"
        return done.stdout.split(), yaml.safe_load(file.read_text()) if file.exists() else {}


def test_megatron_flags_where_the_set_is_whole_layers_at_the_ends() -> None:
    ends = [(name, "bf16") for name in LAYERS if name.startswith(("blocks.0", "blocks.2"))]
    flags, file = megatron_files(megatron(ends, LAYERS, "current"))
    assert flags == [
        "--first-last-layers-bf16", "--num-layers-at-start-in-bf16", "1", "--num-layers-at-end-in-bf16", "1",
    ]  # fmt: skip
    assert file == {}


def test_megatron_file_where_flags_cannot_say_it() -> None:
    text = megatron([("blocks.1.mlp.fc2", "bf16"), ("blocks.0.attn.qkv", "mxfp8")], LAYERS, "current")
    flags, file = megatron_files(text)
    assert flags == ["--te-precision-config-file", "floatscope-precision.yaml"]
    assert "Nearest with flags alone" in text
    assert set(file["configs"]) == {"bf16", "mxfp8"}
    assert file["configs"]["bf16"]["training_recipe"] == {}
    assert file["configs"]["mxfp8"]["training_recipe"] == {"fp8_quantization_recipe": "mxfp8"}
    _, tensorwise = megatron_files(megatron([("blocks.1.mlp.fc2", "current")], LAYERS, "delayed"))
    assert tensorwise["configs"]["current"]["training_recipe"] == {
        "fp8_quantization_recipe": "tensorwise",
        "fp8_format": "hybrid",
    }
    matchers = list(file["matchers"].values())
    assert [(m["pattern"], m["config"]) for m in matchers] == [
        ("*.layers.1.mlp.linear_fc2", "bf16"),
        ("*.layers.0.self_attention.linear_qkv", "mxfp8"),
    ]


def test_megatron_refuses_first_and_last_with_delayed_scaling() -> None:
    ends = [(name, "bf16") for name in LAYERS if name.startswith("blocks.0")]
    text = megatron(ends, LAYERS, "delayed")
    flags, file = megatron_files(text)
    assert flags[0] == "--te-precision-config-file"
    assert len(file["matchers"]) == 4


def test_megatron_says_where_a_name_is_not_one_of_its_layers() -> None:
    text = megatron([("encoder.dense", "bf16")], ("encoder.dense",), "current")
    assert text.startswith("# Cannot be said for Megatron")


def test_the_bundled_trainer_takes_the_precision_map() -> None:
    info = run_info(precision={"backend": "emulated", "precision_map": "head=bf16"})
    text = floatscope_train([("blocks.1.mlp.fc2", "bf16"), ("blocks.0.attn.qkv", "current")], info)
    args = make_parser().parse_args(shlex.split(text))
    made = parse_precision_map(args.precision_map, layers=linear_names(3))
    precisions = {name: made.of(name, default="fp8", depth=3) for name in linear_names(3)}
    assert [name for name, precision in precisions.items() if precision == "bf16"] == [
        "blocks.0.attn.qkv", "blocks.1.mlp.fc2",
    ]  # fmt: skip
    assert made.head == "bf16"


@pytest.mark.parametrize("recipe", ["current", "block", "mxfp8"])
def test_the_bundled_trainer_takes_another_recipe(recipe: str) -> None:
    assert make_parser().parse_args(shlex.split(whole_recipe(recipe))).recipe == recipe


def test_no_options_for_layers_of_other_models() -> None:
    assert floatscope_train([("decoder.layers.0.mlp.linear_fc2", "bf16")], run_info()).startswith("#")
