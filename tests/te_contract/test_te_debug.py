"""Switching Transformer Engine's real debug API on: beside own features, too late, broken, not at all."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import floatscope
from floatscope.integrations.transformer_engine import debug_config
from tests.te_contract.inspected import WIDTH, Watched, inspected, linear, two_layers
from tests.te_contract.te_cpu import TransformerEngine

pytestmark = [pytest.mark.te, pytest.mark.filterwarnings("ignore")]


def test_an_own_feature_goes_on_working_beside(engine: TransformerEngine, api: Any, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "own_probe.py").write_text(OWN_FEATURE)
    own = {
        "mine": {
            "enabled": True,
            "layers": {"layer_name_regex_pattern": r"first"},
            "transformer_engine": {"OwnProbe": {"enabled": True, "tensors": ["activation", "gradient"]}},
        }
    }
    (tmp_path / "own.yaml").write_text(json.dumps(own))
    assert floatscope.te_debug(tmp_path / "own.yaml", feature_dirs=[str(folder)], log_dir=tmp_path / "te")
    model = torch.nn.Sequential(
        linear(engine, WIDTH, 64, name="first"), torch.nn.GELU(), linear(engine, 64, 16, name="second")
    )
    watched = Watched(engine, model, tmp_path, stats_every=4)
    for _ in range(8):
        watched.step()
        api.step()
    _, rows = watched.finish()
    registry: Any = importlib.import_module("nvdlfw_inspect.registry")
    seen = registry.Registry.data["transformer_engine"].features["OwnProbe"].seen
    expected = [(i, "first", kind) for i in range(0, 8, 3) for kind in ("activation", "gradient")]
    assert seen == expected, "its own cadence, its own layers"
    assert [len(inspected(row)) for row in rows] == [6, 0, 0, 0, 6, 0, 0, 0]


OWN_FEATURE = """
from nvdlfw_inspect.registry import Registry, api_method
from transformer_engine.debug.features.api import TEConfigAPIMapper


@Registry.register_feature(namespace="transformer_engine")
class OwnProbe(TEConfigAPIMapper):
    def __init__(self):
        self.seen = []

    @api_method
    def inspect_tensor_enabled(self, config, layer_name, tensor_name, iteration):
        return iteration % 3 == 0, iteration + 3 - iteration % 3

    @api_method
    def inspect_tensor(self, config, layer_name, tensor_name, iteration, tp_group, tensor, **kwargs):
        if iteration % 3 == 0:
            self.seen.append((iteration, layer_name, tensor_name))
"""


def test_what_is_missing_is_said_once(
    engine: TransformerEngine, api: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = two_layers(engine)
    assert floatscope.te_debug(log_dir=tmp_path / "te") is False, "modules exist already"
    assert "before the first of them is built" in caplog.text
    watched = Watched(engine, model, tmp_path)
    for _ in range(3):
        watched.step()
    watched.finish()
    said = [text for text in caplog.messages if "call floatscope.te_debug()" in text]
    assert len(said) == 1


def test_who_asks_for_it_with_delayed_scaling_hears_that_it_is_off(
    engine: TransformerEngine, api: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = engine.recipes.DelayedScaling()
    watched = Watched(engine, two_layers(engine), tmp_path, recipe=recipe, te_inspect=True)
    watched.step()
    watched.finish()
    assert "te_inspect=True, but Transformer Engine's debug API is off" in caplog.text


def test_a_configuration_without_the_feature_is_told(
    engine: TransformerEngine, api: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Initialised by somebody else, with features of the package alone."""
    import transformer_engine

    features = Path(transformer_engine.__file__).parent / "debug" / "features"
    layers = {"layer_name_regex_pattern": ".*"}
    disabled = {"DisableFP8GEMM": {"enabled": False, "gemms": ["fprop"]}}
    api.initialize(
        config_file={"own": {"enabled": True, "layers": layers, "transformer_engine": disabled}},
        feature_dirs=[str(features)],
        log_dir=str(tmp_path / "te"),
    )
    assert floatscope.te_debug() is False
    assert "initialised already, without floatscope's feature" in caplog.text
    watched = Watched(engine, two_layers(engine), tmp_path)
    watched.step()
    watched.finish()
    assert "on without floatscope's feature" in caplog.text


@pytest.mark.parametrize(("inspect", "recipe"), [(False, "current"), (None, "delayed")])
def test_who_does_not_need_it_is_not_told(
    engine: TransformerEngine,
    api: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    inspect: Any,
    recipe: str,
) -> None:
    chosen = engine.recipes.DelayedScaling() if recipe == "delayed" else None
    watched = Watched(engine, two_layers(engine), tmp_path, recipe=chosen, te_inspect=inspect)
    watched.step()
    watched.finish()
    assert "te_debug" not in caplog.text


def test_a_feature_that_cannot_be_loaded_does_not_end_the_process(
    engine: TransformerEngine, api: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "bad_feature.py").write_text("raise RuntimeError('broken')\n")
    assert floatscope.te_debug(feature_dirs=[str(tmp_path / "bad")], log_dir=tmp_path / "te") is False
    assert "a feature could not be loaded" in caplog.text
    assert floatscope.te_debug(log_dir=tmp_path / "te") is True
    assert floatscope.te_debug(log_dir=tmp_path / "te") is True, "a second call changes nothing"


def test_a_configuration_joins_the_users() -> None:
    own = {
        "a": {"enabled": True, "layers": {"layer_name_regex_pattern": "mlp"}, "transformer_engine": {"X": 1}},
        "off": {"enabled": False, "layers": {"layer_name_regex_pattern": "attn"}},
    }
    found = debug_config(own)
    assert set(found["a"]["transformer_engine"]) == {"X", "FloatscopeStats"}
    assert found["off"] == own["off"]
    rest = re.compile(found["floatscope"]["layers"]["layer_name_regex_pattern"])
    assert rest.search("layers.0.attn")
    assert not rest.search("layers.0.mlp.fc1")
    by_type = {"a": {"enabled": True, "layers": {"layer_types": ["mlp"]}}}
    assert set(debug_config(by_type)) == {"a"}, "what such a section leaves out cannot be told"
    assert debug_config()["floatscope"]["layers"] == {"layer_name_regex_pattern": ".*"}
