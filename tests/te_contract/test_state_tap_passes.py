"""The state tap where the package does more than one plain pass: fused operations, recipes, recomputation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.te_contract.te_cpu import TransformerEngine
from tests.te_contract.test_state_tap import WIDTH, Watched, linear, linear_from

pytestmark = [pytest.mark.te, pytest.mark.filterwarnings("ignore")]


def test_fused_operations_have_columns_of_their_own(engine: TransformerEngine, tmp_path: Path) -> None:
    ops, options = engine.te.ops, {"bias": False, "device": "cpu", "dtype": torch.bfloat16}
    model = ops.Sequential(ops.Linear(WIDTH, 64, **options), ops.Linear(64, 16, **options))
    watched = Watched(engine, model, engine.recipes.DelayedScaling(amax_history_len=4), tmp_path)
    for _ in range(2):
        engine.casts.clear()
        watched.forward_backward()
        watched.monitor.step()
    run, rows = watched.finish()
    first, second = "0.basic_ops.0", "1.basic_ops.0"
    order = [f"{layer}/{role}" for layer in (first, second) for role in ("input", "weight")]
    order += [f"{second}/grad_output", f"{first}/grad_output"]
    expected = dict(zip(order, ({"amax": c[1], "scale": c[2]} for c in engine.casts), strict=True))
    assert rows[1]["tensors"] == expected
    assert run["recipe"]["name"] == "fp8_delayed_scaling"
    assert run["tensors"][f"{second}/grad_output"]["format"] == "e5m2"


def test_layers_of_another_recipe_say_so(engine: TransformerEngine, tmp_path: Path) -> None:
    delayed, current = engine.recipes.DelayedScaling(), engine.recipes.Float8CurrentScaling()
    model = torch.nn.Sequential(linear(engine), linear_from(engine, 64), linear_from(engine, 16))
    watched = Watched(engine, model, current, tmp_path)
    x = torch.randn(16, WIDTH, dtype=torch.bfloat16)
    for index, recipe in enumerate((current, current, delayed)):
        with engine.te.autocast(enabled=True, recipe=recipe):
            x = model[index](x)
    watched.monitor.step()
    run, _ = watched.finish()
    assert run["recipe"]["name"] == "fp8_current_scaling"
    assert run["tensors"]["2/input"]["recipe"] == "fp8_delayed_scaling"
    assert run["tensors"]["2/grad_output"] == {"recipe": "fp8_delayed_scaling", "format": "e5m2"}


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputed_passes_count_once(engine: TransformerEngine, tmp_path: Path, reentrant: bool) -> None:
    """The package's activation recomputation runs the forward pass again inside the backward pass."""
    recipe = engine.recipes.DelayedScaling(amax_history_len=1, amax_compute_algo="most_recent")
    watched = Watched(engine, torch.nn.Sequential(linear(engine)), recipe, tmp_path)
    for _ in range(3):
        engine.casts.clear()
        x = torch.randn(16, WIDTH, dtype=torch.bfloat16, requires_grad=True)
        with engine.te.autocast(enabled=True, recipe=recipe):
            out = engine.te.checkpoint(watched.model, x, use_reentrant=reentrant)
        out.float().pow(2).mean().backward()
        watched.monitor.step()
    _, rows = watched.finish()
    assert len(engine.casts) == 5, "input and weight twice, the gradient once"
    assert all("passes" not in row for row in rows)
    assert rows[2]["tensors"]["0/input"] == {"amax": engine.casts[0][1], "scale": engine.casts[0][2]}
    assert rows[2]["tensors"]["0/grad_output"]["amax"] == engine.casts[-1][1]


def test_a_pass_that_ends_only_in_its_recomputation_counts(engine: TransformerEngine, tmp_path: Path) -> None:
    """The context inside the recomputed function: the first run is without gradients and ends no pass."""
    from torch.utils.checkpoint import checkpoint

    recipe = engine.recipes.DelayedScaling(amax_history_len=1, amax_compute_algo="most_recent")
    watched = Watched(engine, torch.nn.Sequential(linear(engine)), recipe, tmp_path)

    def run(x: torch.Tensor) -> Any:
        with engine.te.autocast(enabled=True, recipe=recipe):
            return watched.model(x)

    for _ in range(2):
        engine.casts.clear()
        for factor in (1.0, 5.0):
            x = factor * torch.randn(16, WIDTH, dtype=torch.bfloat16)
            out: Any = checkpoint(run, x.requires_grad_(), use_reentrant=True)
            out.float().pow(2).mean().backward()
        watched.monitor.step()
    _, rows = watched.finish()
    largest = max(cast[1] for cast in engine.casts if cast[1] > 2)
    assert rows[1]["tensors"]["0/input"]["amax"] == largest
    assert rows[1]["passes"] == 2
