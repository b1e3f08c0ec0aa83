"""torchao's real float8 training on the CPU: every cast is measured, by layer and role."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import torchao.float8.float8_linear as float8_linear
import torchao.float8.fsdp_utils as fsdp_utils
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

import floatscope
from tests.agent.training import recording

RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp")
CAST = "hp_tensor_to_float8_dynamic"
WIDTH = 32
ORIGINAL = float8_linear.hp_tensor_to_float8_dynamic


@dataclasses.dataclass
class Spy:
    """Notes torchao's casts as they happen, independently of the agent: (layer, role, tensor, result)."""

    casts: list[tuple[str, str, Tensor, Any]] = dataclasses.field(default_factory=list)


def model_of(recipe: str, *, emulate: bool = False, depth: int = 3, **settings: Any) -> Any:
    """Layers of one shape, so that only the right bookkeeping tells them apart."""
    torch.manual_seed(0)
    parts: list[nn.Module] = []
    for _ in range(depth):
        parts += [nn.Linear(WIDTH, WIDTH, bias=False), nn.GELU()]
    model = nn.Sequential(*parts).bfloat16()
    config = dataclasses.replace(Float8LinearConfig.from_recipe_name(recipe), emulate=emulate, **settings)
    return convert_to_float8_training(model, config=config)


def batch(step: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(16, WIDTH, generator=generator).bfloat16()


def run(model: Any, x: Tensor) -> None:
    loss: Any = model(x).float().pow(2).mean()
    loss.backward()


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    """A wrapper of the test's own around torchao's function; the agent's goes over it."""
    found = Spy()

    def watch(tensor: Any, dtype: Any, config: Any, *args: Any, **kwargs: Any) -> Any:
        result = ORIGINAL(tensor, dtype, config, *args, **kwargs)
        found.casts.append((str(id(config)), kwargs["gemm_input_role"].name.lower(), tensor, result))
        return result

    monkeypatch.setattr(float8_linear, CAST, watch)
    return found


def truth(model: Any, spy: Spy) -> dict[str, tuple[Tensor, Any]]:
    """The first cast of every tensor in a step."""
    layer_of = {
        str(id(m.linear_mm_config)): name
        for name, m in model.named_modules()
        if name and "." not in name and hasattr(m, "linear_mm_config")
    }
    found: dict[str, tuple[Tensor, Any]] = {}
    for key, role, tensor, result in spy.casts:
        found.setdefault(f"{layer_of[key]}/{role}", (tensor, result))
    return found


@pytest.mark.parametrize("emulate", [False, True])
@pytest.mark.parametrize("recipe", RECIPES)
def test_each_cast_belongs_to_its_layer_and_role(
    tmp_path: Path, spy: Spy, recipe: str, emulate: bool
) -> None:
    model = model_of(recipe, emulate=emulate)
    x = batch() * torch.logspace(-3, 3, 16)[:, None].bfloat16()
    with recording(tmp_path, model) as found:
        run(model, x)
        found.monitor.step()
    rows = found.rows[0]["tensors"]
    expected = truth(model, spy)
    roles = {f"{layer}/{role}" for layer in "024" for role in ("input", "weight", "grad_output")}
    assert set(expected) == roles
    assert {name for name, stats in rows.items() if "sqnr_db" in stats} == roles
    for name, (tensor, result) in expected.items():
        stats = rows[name]
        wide = tensor.double()
        used = result._data.double() / result._scale.double()
        assert stats["amax"] == float(wide.abs().max())
        assert stats["scale"] == float(result._scale.min())
        assert stats.get("nan_count", 0) == 0
        zeroed = 100 * float(((wide != 0) & (used == 0)).double().mean())
        assert stats["underflow_pct"] == pytest.approx(zeroed, abs=1e-4)
        assert stats["overflow_pct"] == 0
        noise = 20 * torch.log10(wide.norm() / (wide - used).norm())
        assert stats["sqnr_db"] == pytest.approx(float(noise), abs=0.05)
        fmt = "e5m2" if result._data.dtype == torch.float8_e5m2 else "e4m3"
        assert found.run["tensors"][name]["format"] == fmt
        has_rows = "amax_min_block" in stats
        assert has_rows == (result._scale.numel() > 1)
    order = [found.run["tensors"][f"{layer}/input"]["call_order"] for layer in "024"]
    assert order == sorted(order)


@pytest.mark.parametrize(
    ("recipe", "name"), zip(RECIPES, ("ao_tensorwise", "ao_rowwise", "ao_rowwise"), strict=True)
)
def test_the_recipe_is_named_in_full(tmp_path: Path, recipe: str, name: str) -> None:
    with recording(tmp_path, model_of(recipe)) as found:
        found.monitor.step(loss=1.0)
    told = found.run["recipe"]
    assert told["name"] == name
    assert told["layers"] == {name: 3}
    assert told["cast_input"]["format"] == "e4m3"
    assert told["cast_grad_output"]["format"] == ("e5m2" if recipe == "tensorwise" else "e4m3")
    assert told["cast_input"]["granularity"] == ("tensorwise" if recipe == "tensorwise" else "axiswise")
    assert told["round_scales_to_power_of_2"] is (recipe != "tensorwise")
    assert told["saturating_cast"] is True
    if recipe == "rowwise_with_gw_hp":
        assert told["cast_input_for_grad_weight"]["scaling"] == "disabled"


def test_layers_of_another_recipe_are_marked(tmp_path: Path) -> None:
    model = nn.Sequential(model_of("rowwise", depth=2), model_of("tensorwise", depth=1))
    with recording(tmp_path, model) as found:
        run(model, batch())
        found.monitor.step()
    tensors = found.run["tensors"]
    assert found.run["recipe"]["name"] == "ao_rowwise"
    assert tensors["1.0/input"]["recipe"] == "ao_tensorwise"
    assert "recipe" not in tensors["0.0/input"]


def test_micro_batches_count_each_pass_once(tmp_path: Path) -> None:
    model = model_of("tensorwise")
    with recording(tmp_path, model) as found:
        for step in range(3):
            run(model, batch(step) * (step + 1))
        found.monitor.step()
    assert found.rows[0]["passes"] == 3
    largest = max(float((batch(step) * (step + 1)).abs().max()) for step in range(3))
    assert found.rows[0]["tensors"]["0/input"]["amax"] == largest


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputed_activations_count_once(tmp_path: Path, spy: Spy, reentrant: bool) -> None:
    model = model_of("tensorwise")
    x = batch().requires_grad_()
    with recording(tmp_path, model) as found:
        loss: Any = checkpoint(model, x, use_reentrant=reentrant).float().pow(2).mean()
        loss.backward()
        found.monitor.step()
    tensors = found.rows[0]["tensors"]
    assert "passes" not in found.rows[0]
    for name, (tensor, _) in truth(model, spy).items():
        assert tensors[name]["amax"] == float(tensor.detach().abs().max())


def test_steps_that_are_not_sampled_and_evaluations_cost_nothing(tmp_path: Path) -> None:
    model = model_of("tensorwise")
    with recording(tmp_path, model, stats_every=2) as found:
        for _ in range(3):
            model.eval()
            with torch.no_grad():
                model(batch() * 1000)
            model.train()
            run(model, batch())
            found.monitor.step()
    assert "0/input" in found.rows[0]["tensors"]
    assert "0/input" not in found.rows[1].get("tensors", {})
    assert found.rows[2]["tensors"]["0/input"]["amax"] == float(batch().abs().max())


def test_an_infinity_shows_in_amax_count_and_scale(tmp_path: Path) -> None:
    model = model_of("tensorwise", emulate=True)
    x = batch()
    x[3, 4] = float("inf")
    x[5, 6] = float("nan")
    with recording(tmp_path, model) as found:
        model(x)
        found.monitor.step()
    stats = found.rows[0]["tensors"]["0/input"]
    assert (stats["amax"], stats["inf_count"], stats["nan_count"]) == ("Infinity", 1, 1)


def test_the_package_is_as_it_was_after_any_number_of_monitors(tmp_path: Path) -> None:
    before = float8_linear.hp_tensor_to_float8_dynamic, fsdp_utils.hp_tensor_to_float8_dynamic
    model, other = model_of("tensorwise"), model_of("rowwise")
    with recording(tmp_path / "a", model) as first, recording(tmp_path / "b", other) as second:
        assert float8_linear.hp_tensor_to_float8_dynamic is not before[0]
        run(model, batch())
        run(other, batch(1))
        first.monitor.step()
        second.monitor.step()
        second.monitor.finish()
        run(model, batch())
        first.monitor.step()
    assert (float8_linear.hp_tensor_to_float8_dynamic, fsdp_utils.hp_tensor_to_float8_dynamic) == before
    assert first.rows[1]["tensors"]["0/input"]["amax"] == float(batch().abs().max())
    assert second.rows[0]["tensors"]["0/input"]["amax"] == float(batch(1).abs().max())


def test_a_copy_of_the_model_is_not_taken_for_it(tmp_path: Path) -> None:
    model = model_of("tensorwise")
    twin = copy.deepcopy(model)
    with recording(tmp_path, model) as found:
        run(twin, batch() * 100)
        run(model, batch())
        found.monitor.step()
    assert found.rows[0]["tensors"]["0/input"]["amax"] == float(batch().abs().max())


def test_training_is_the_same_with_and_without_the_agent(tmp_path: Path) -> None:
    def train(monitor_of: Any) -> Tensor:
        model = model_of("rowwise")
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        monitor = monitor_of(model, optimizer)
        for step in range(4):
            run(model, batch(step))
            optimizer.step()
            if monitor is not None:
                monitor.step()
            optimizer.zero_grad()
        if monitor is not None:
            monitor.finish()
        return torch.cat([p.detach().float().flatten() for p in model.parameters()])

    def watch(model: Any, optimizer: Any) -> Any:
        return floatscope.watch(
            model, optimizer, run="same", mode="local", log_path=tmp_path / "run.jsonl",
            strict=True, gpu=False, stats_every=1,
        )  # fmt: skip

    assert torch.equal(train(lambda model, optimizer: None), train(watch))


def test_compiled_layers_are_said_not_to_be_seen(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = model_of("tensorwise", emulate=True, depth=1)
    compiled: Any = torch.compile(model, backend="aot_eager")
    run(compiled, batch())
    with recording(tmp_path, compiled, layer_hooks=False) as found:
        run(compiled, batch())
        found.monitor.step()
    assert "0/input" not in found.rows[0].get("tensors", {})
    assert "inside compiled code casts are not seen" in " ".join(caplog.text.split())


def test_a_model_may_be_compiled_while_it_is_watched(tmp_path: Path) -> None:
    """Tracing goes through the wrapped function with stand-ins for tensors, which have no values."""
    model = model_of("tensorwise", emulate=True, depth=1)
    compiled: Any = torch.compile(model, backend="aot_eager", fullgraph=True)
    with recording(tmp_path, compiled, layer_hooks=False) as found:
        run(compiled, batch())
        found.monitor.step()
    run(compiled, batch())
    assert "0/input" not in found.rows[0].get("tensors", {})


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_compiled_layers_are_cast_again_to_be_measured(tmp_path: Path, recipe: str, backend: str) -> None:
    """With ``compiled_layers=True``: one graph, the same gradients, the statistics of eager mode.

    Steps that are not sampled cast nothing a second time.
    """
    found_of: list[Any] = []
    gradients: list[Tensor] = []
    for how in ("eager mode", "compiled", "unwatched"):
        torch._dynamo.reset()
        model = model_of(recipe, emulate=True)
        running: Any = model
        if how != "eager mode":
            running = torch.compile(model, backend=backend, fullgraph=True)
        path = tmp_path / how
        path.mkdir()
        if how == "unwatched":
            run(running, batch())
            run(running, batch(1))
        else:
            with recording(path, model, stats_every=2, compiled_layers=True) as found:
                for step in range(2):
                    run(running, batch(step))
                    found.monitor.step()
            found_of.append(found)
        gradients.append(torch.cat([p.grad.float().flatten() for p in model.parameters()]))
    assert torch.equal(gradients[1], gradients[2])
    eager, compiled = found_of
    assert not compiled.tensors(1, "amax")
    for stat in ("amax", "scale", "rms", "underflow_pct", "sqnr_db", "overflow_pct"):
        truth, read = eager.tensors(0, stat), compiled.tensors(0, stat)
        assert set(read) == set(truth)
        for name, value in truth.items():
            assert read[name] == pytest.approx(value, rel=1e-5)


def test_scales_made_for_the_all_gather_are_read(tmp_path: Path) -> None:
    """FSDP2's float8 all-gather keeps each weight's scale on the sharded parameter."""
    model = model_of("tensorwise", enable_fsdp_float8_all_gather=True, emulate=True)
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
        for layer in model:
            if hasattr(layer, "linear_mm_config"):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        with recording(tmp_path, model, optimizer, parameter_hashes=False) as found:
            for _ in range(2):
                run(model, batch())
                optimizer.step()
                fsdp_utils.precompute_float8_dynamic_scale_for_fsdp(model)
                found.monitor.step()
                optimizer.zero_grad()
        largest = {str(2 * i): float(model[2 * i].weight.to_local()._tensor.abs().max()) for i in range(3)}
    finally:
        dist.destroy_process_group()
    for layer, amax in largest.items():
        stats = found.rows[1]["tensors"][f"{layer}/weight"]
        assert stats["amax"] == pytest.approx(amax, rel=1e-3)
        assert stats["scale"] == pytest.approx(448 / amax, rel=1e-3)
        assert found.run["tensors"][f"{layer}/weight"]["format"] == "e4m3"
        assert "sqnr_db" in found.rows[0]["tensors"][f"{layer}/weight"], "cast by the first all-gather"
