"""The texts of a precision advice for Transformer Engine, run on the real package."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from floatscope_diagnostics.advisor.settings_te import transformer_engine, whole_recipe
from tests.te_contract.inspected import WIDTH, linear
from tests.te_contract.te_cpu import TransformerEngine

pytestmark = [pytest.mark.te, pytest.mark.filterwarnings("ignore")]

NAMES = ("first", "second", "third")


def model_of(engine: TransformerEngine) -> torch.nn.Sequential:
    model = torch.nn.Sequential()
    for name in NAMES:
        model.add_module(name, linear(engine, WIDTH, WIDTH, name=name))
    return model


def casts_by_layer(engine: TransformerEngine, model: torch.nn.Sequential) -> dict[str, set[str]]:
    """Classes of quantizers that each layer's forward pass used, all under delayed scaling."""
    found: dict[str, set[str]] = {}
    x = torch.randn(32, WIDTH, dtype=torch.bfloat16)
    with engine.te.autocast(enabled=True, recipe=engine.recipes.DelayedScaling()):
        for name, module in model.named_children():
            engine.casts.clear()
            x = module(x).detach()
            found[name] = {cast[0] for cast in engine.casts}
    return found


def test_the_code_gives_the_named_modules_their_own_precision(engine: TransformerEngine) -> None:
    namespace: dict[str, Any] = {}
    exec(compile(transformer_engine([("first", "bf16"), ("third", "current")]), "advice", "exec"), namespace)
    model = model_of(engine)
    assert all(casts == {"Float8Quantizer"} for casts in casts_by_layer(engine, model).values())
    namespace["set_precision"](model)
    found = casts_by_layer(engine, model)
    assert found == {
        "first": set(),
        "second": {"Float8Quantizer"},
        "third": {"Float8CurrentScalingQuantizer"},
    }


def test_a_name_that_no_module_has_is_refused(engine: TransformerEngine) -> None:
    namespace: dict[str, Any] = {}
    exec(compile(transformer_engine([("fourth", "bf16")]), "advice", "exec"), namespace)
    with pytest.raises(ValueError, match="fourth"):
        namespace["set_precision"](model_of(engine))


@pytest.mark.parametrize("recipe", ["current", "block", "mxfp8"])
def test_recipes_of_the_texts_exist(engine: TransformerEngine, recipe: str) -> None:
    namespace: dict[str, Any] = {}
    exec(compile(whole_recipe(recipe), "advice", "exec"), namespace)
    assert isinstance(namespace["recipe"], engine.recipes.Recipe)


def test_the_inspect_file_takes_the_named_layers_out_of_fp8(
    engine: TransformerEngine, api: Any, tmp_path: Path
) -> None:
    text = transformer_engine([("first", "bf16"), ("third", "bf16")])
    written = re.search(r'INSPECT_YAML = r"""\n(.*?)"""', text, re.S)
    assert written is not None
    (tmp_path / "inspect.yaml").write_text(written[1])
    features = Path(str(engine.te.__file__)).parents[1] / "debug" / "features"
    if not (features / "disable_quantization_layer.py").exists():
        pytest.skip("before 2.11 the feature has another name, as the text says")
    api.initialize(
        config_file=str(tmp_path / "inspect.yaml"),
        feature_dirs=[str(features)],
        log_dir=str(tmp_path),
        default_logging_enabled=False,
    )
    found = casts_by_layer(engine, model_of(engine))
    assert {name for name, casts in found.items() if casts} == {"second"}
