"""Floatscope's feature in Transformer Engine's real debug API (nvdlfw-inspect), on the real Python code.

The casts on the CPU record what they were given, so what the agent reports is compared with what happened.
"""

from __future__ import annotations

import importlib
import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import floatscope
from tests.te_contract.inspected import ORDER, WIDTH, Watched, inspected, linear, two_layers
from tests.te_contract.te_cpu import TransformerEngine

pytestmark = [pytest.mark.te, pytest.mark.filterwarnings("ignore")]


def test_current_scaling_has_every_statistic_of_every_cast(
    engine: TransformerEngine, api: Any, tmp_path: Path
) -> None:
    assert floatscope.te_debug(log_dir=tmp_path / "te")
    watched = Watched(engine, two_layers(engine), tmp_path)
    seen = []
    for step in range(4):
        engine.casts.clear()
        watched.forward_backward(factor=100.0 if step == 2 else 1.0)
        seen.append({name: cast[1:] for name, cast in zip(ORDER, engine.casts, strict=True)})
        watched.monitor.step()
    run, rows = watched.finish()
    for row, casts in zip(rows, seen, strict=True):
        assert row["te_inspected"] == 1.0
        assert inspected(row) == set(ORDER)
        for name, (amax, scale) in casts.items():
            stats = row["tensors"][name]
            assert stats["amax"] == amax
            assert stats["scale"] == pytest.approx(scale, rel=1e-6)
            assert stats["overflow_pct"] == 0
            assert stats["nan_count"] == stats["inf_count"] == 0
            assert 10 < stats["sqnr_db"] < 60
    assert run["recipe"]["name"] == "fp8_current_scaling"
    assert run["recipe"]["transformer_engine"].startswith("2.")
    assert run["tensors"]["0/input"]["format"] == "e4m3"
    assert run["tensors"]["2/grad_output"]["format"] == "e5m2"


def test_between_sampled_steps_layers_run_their_normal_path(
    engine: TransformerEngine, api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    floatscope.te_debug(log_dir=tmp_path / "te")
    made: list[str] = []
    module: Any = importlib.import_module("transformer_engine.debug.pytorch.debug_quantization")
    original = module.DebugQuantizer.__init__

    def note(self: Any, layer: str, *args: Any, **kwargs: Any) -> None:
        made.append(layer)
        original(self, layer, *args, **kwargs)

    monkeypatch.setattr(module.DebugQuantizer, "__init__", note)
    watched = Watched(engine, two_layers(engine), tmp_path, stats_every=4)
    counts = []
    for _ in range(10):
        made.clear()
        watched.step()
        counts.append(len(made))
    _, rows = watched.finish()
    assert [len(inspected(row)) for row in rows] == [6, 0, 0, 0, 6, 0, 0, 0, 6, 0]
    assert [row.get("te_inspected") for row in rows[:5]] == [1.0, None, None, None, 1.0]
    # until the probe knows that nobody counts steps, layers ask once more
    assert [bool(count) for count in counts[2:]] == [False, False, True, False, False, False, True, False]


@pytest.mark.parametrize("when", ["never", "before", "after"])
def test_the_step_counter_is_moved_once_a_step(
    engine: TransformerEngine, api: Any, tmp_path: Path, when: str
) -> None:
    floatscope.te_debug(log_dir=tmp_path / "te")
    watched = Watched(engine, two_layers(engine), tmp_path, stats_every=2)
    counts = []
    for _ in range(8):
        watched.forward_backward()
        if when == "before":
            api.step()
        watched.monitor.step()
        if when == "after":
            api.step()
        counts.append(api.DEBUG_MANAGER._trainer_iteration_count)
    _, rows = watched.finish()
    moved = [b - a for a, b in itertools.pairwise(counts[2:])]
    assert moved == [1] * 5
    assert [len(inspected(row)) for row in rows] == [6, 0] * 4


def test_suspects_are_inspected_between_samples(engine: TransformerEngine, api: Any, tmp_path: Path) -> None:
    floatscope.te_debug(log_dir=tmp_path / "te")
    watched = Watched(engine, two_layers(engine), tmp_path, stats_every=100)
    for step in range(8):
        if step == 3:
            asked = {"stats_every": 1, "until_step": 6, "layers": ["2"]}
            watched.monitor._schedule.ask(asked)
        watched.step()
    _, rows = watched.finish()
    mine = {"2/input", "2/weight", "2/grad_output"}
    found = [inspected(row) for row in rows]
    assert found[0] == set(ORDER)
    assert found[1:4] == [set()] * 3
    assert found[4] == found[5] == mine
    assert found[7] == set()


def test_modules_with_several_gemms_name_them(engine: TransformerEngine, api: Any, tmp_path: Path) -> None:
    floatscope.te_debug(log_dir=tmp_path / "te")
    te, options = engine.te, {"bias": False, "device": "cpu", "params_dtype": torch.bfloat16}
    model = torch.nn.Sequential()
    model.add_module("qkv", te.LayerNormLinear(WIDTH, WIDTH, **options))
    model.add_module("mlp", te.LayerNormMLP(WIDTH, 64, **options))
    watched = Watched(engine, model, tmp_path)
    watched.step()
    watched.step()
    _, rows = watched.finish()
    layers = ("qkv", "mlp.fc1", "mlp.fc2")
    wanted = {f"{layer}/{role}" for layer in layers for role in ("input", "weight", "grad_output")}
    assert inspected(rows[1]) == wanted


def test_experts_are_numbered_over_all_ranks(engine: TransformerEngine, api: Any, tmp_path: Path) -> None:
    floatscope.te_debug(log_dir=tmp_path / "te")
    grouped = engine.te.GroupedLinear(2, WIDTH, 16, bias=False, device="cpu", params_dtype=torch.bfloat16)
    watched = Watched(engine, grouped, tmp_path, coordinates={"ep": 3})
    watched.forward_backward(args=([6, 10],))
    watched.monitor.step()
    _, rows = watched.finish()
    roles = ("input", "weight", "grad_output")
    assert inspected(rows[0]) == {f"model.experts.{i}/{role}" for i in (6, 7) for role in roles}


def test_names_given_later_and_given_twice(engine: TransformerEngine, api: Any, tmp_path: Path) -> None:
    floatscope.te_debug(log_dir=tmp_path / "te")
    model = torch.nn.Sequential(
        linear(engine, WIDTH, WIDTH, name="same"), linear(engine, WIDTH, WIDTH, name="same")
    )
    watched = Watched(engine, model, tmp_path)
    engine.casts.clear()
    watched.step()
    casts = [cast[1] for cast in engine.casts]
    api.infer_and_assign_layer_names(model)
    watched.step()
    _, rows = watched.finish()
    first = rows[0]["tensors"]
    assert [first[f"{i}/input"]["amax"] for i in (0, 1)] == [casts[0], casts[2]]
    assert [first[f"{i}/grad_output"]["amax"] for i in (1, 0)] == casts[4:]
    assert inspected(rows[1]) == {f"{i}/{r}" for i in "01" for r in ("input", "weight", "grad_output")}


def test_two_models_and_two_monitors_are_kept_apart(
    engine: TransformerEngine, api: Any, tmp_path: Path
) -> None:
    floatscope.te_debug(log_dir=tmp_path / "te")
    models = [two_layers(engine), two_layers(engine)]
    for model in models:
        api.infer_and_assign_layer_names(model)  # now their layers have the same names
    both = [Watched(engine, model, tmp_path / str(i)) for i, model in enumerate(models)]
    both[0].forward_backward()
    both[1].forward_backward(factor=1000.0)
    for watched in both:
        watched.monitor.step()
    (_, small), (_, large) = both[0].finish(), both[1].finish()
    assert small[0]["tensors"]["0/input"]["amax"] < 10
    assert large[0]["tensors"]["0/input"]["amax"] > 1000


def test_delayed_scaling_keeps_the_tap_beside_whole_tensors(
    engine: TransformerEngine, api: Any, tmp_path: Path
) -> None:
    floatscope.te_debug(log_dir=tmp_path / "te")
    recipe = engine.recipes.DelayedScaling(amax_history_len=4)
    watched = Watched(engine, two_layers(engine), tmp_path, recipe=recipe, stats_every=2)
    for _ in range(4):
        watched.step()
    _, rows = watched.finish()
    for step, row in enumerate(rows):
        assert {name for name, stats in row["tensors"].items() if "scale" in stats} >= set(ORDER)
        assert inspected(row) == (set(ORDER) if step % 2 == 0 else set())
    assert rows[0]["tensors"]["0/grad_output"]["underflow_pct"] > 0, "the first pass has scale 1"


def test_after_the_monitor_nothing_is_asked_any_more(
    engine: TransformerEngine, api: Any, tmp_path: Path
) -> None:
    from floatscope.probes.te_watchers import feature_watchers

    floatscope.te_debug(log_dir=tmp_path / "te")
    watched = Watched(engine, two_layers(engine), tmp_path)
    watchers: Any = feature_watchers()
    assert len(watchers._watchers) == 1
    watched.step()
    watched.finish()
    assert watchers._watchers == []
    api.step()
    watched.forward_backward()
    api.step()
    assert all(watched.model[i].next_iter_when_debug_should_be_run is None for i in (0, 2))


def test_a_nan_and_an_infinity_are_counted(engine: TransformerEngine, api: Any, tmp_path: Path) -> None:
    floatscope.te_debug(log_dir=tmp_path / "te")
    watched = Watched(engine, two_layers(engine), tmp_path)
    x = torch.randn(16, WIDTH, dtype=torch.bfloat16)
    x[0, 0], x[1, 1], x[2, 2] = math.nan, math.inf, math.nan
    with engine.te.autocast(enabled=True, recipe=watched.recipe):
        watched.model(x)
    watched.monitor.step()
    _, rows = watched.finish()
    stats = rows[0]["tensors"]["0/input"]
    assert (stats["nan_count"], stats["inf_count"], stats["amax"]) == (2, 1, "Infinity")


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputed_activations_count_once(
    engine: TransformerEngine, api: Any, tmp_path: Path, reentrant: bool
) -> None:
    floatscope.te_debug(log_dir=tmp_path / "te")
    watched = Watched(engine, two_layers(engine), tmp_path)
    engine.casts.clear()
    x = torch.randn(16, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    with engine.te.autocast(enabled=True, recipe=watched.recipe):
        out = engine.te.checkpoint(watched.model, x, use_reentrant=reentrant)
    out.float().pow(2).mean().backward()
    watched.monitor.step()
    _, rows = watched.finish()
    assert len(engine.casts) == 10, "inputs and weights twice"
    assert "passes" not in rows[0]
    assert inspected(rows[0]) == set(ORDER)
    assert rows[0]["tensors"]["0/input"]["amax"] == engine.casts[0][1]


def test_layers_out_of_fp8_are_measured_against_the_format_to_check(
    engine: TransformerEngine, api: Any, tmp_path: Path
) -> None:
    floatscope.te_debug(log_dir=tmp_path / "te")
    watched = Watched(engine, two_layers(engine), tmp_path, check_format="e4m3")
    x = torch.randn(16, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    watched.model(x).float().pow(2).mean().backward()
    watched.monitor.step()
    run, rows = watched.finish()
    stats = rows[0]["tensors"]["0/input"]
    assert stats["amax"] == float(x.detach().abs().max())
    assert "scale" not in stats
    assert run["tensors"]["0/input"]["format"] == "bf16"
    assert run["tensors"]["0/input"]["would_be"] == "e4m3"


def test_evaluation_is_not_training(engine: TransformerEngine, api: Any, tmp_path: Path) -> None:
    floatscope.te_debug(log_dir=tmp_path / "te")
    watched = Watched(engine, two_layers(engine), tmp_path)
    watched.forward_backward()
    watched.model.eval()
    with torch.no_grad(), engine.te.autocast(enabled=True, recipe=watched.recipe):
        watched.model(1000 * torch.randn(16, WIDTH, dtype=torch.bfloat16))
    watched.model.train()
    watched.monitor.step()
    _, rows = watched.finish()
    assert rows[0]["tensors"]["0/input"]["amax"] < 10


def test_training_is_the_same_with_and_without_the_agent(
    engine: TransformerEngine, api: Any, tmp_path: Path
) -> None:
    """On the CPU's casts; on a GPU the debug path is not fused, and its last bits are its own."""

    def train(*, watch: bool) -> torch.Tensor:
        engine.manager.reset()
        torch.manual_seed(3)
        model = two_layers(engine)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        monitor = None
        if watch:
            monitor = floatscope.watch(
                model, optimizer, run="same", mode="local", log_path=tmp_path / "run.jsonl", strict=True,
                gpu=False, stats_every=1,
            )  # fmt: skip
        for _ in range(5):
            x = torch.randn(16, WIDTH, dtype=torch.bfloat16)
            with engine.te.autocast(enabled=True, recipe=engine.recipes.Float8CurrentScaling()):
                out = model(x)
            loss: Any = out.float().pow(2).mean()
            loss.backward()
            optimizer.step()
            if monitor is not None:
                monitor.step(loss=loss)
            optimizer.zero_grad()
        if monitor is not None:
            monitor.finish()
        return torch.cat([p.detach().float().flatten() for p in model.parameters()])

    floatscope.te_debug(log_dir=tmp_path / "te")
    assert torch.equal(train(watch=False), train(watch=True))
