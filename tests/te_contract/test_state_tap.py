"""The state tap on Transformer Engine's real Python code: modules, autograd functions, buffers, updates.

The casts on the CPU record what they were given, so what the agent reports is compared with what happened.
"""

from __future__ import annotations

import importlib
import inspect
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import floatscope
from tests.te_contract.te_cpu import TransformerEngine

pytestmark = [pytest.mark.te, pytest.mark.filterwarnings("ignore")]

E4M3, E5M2 = 448.0, 57344.0
WIDTH = 32


class Watched:
    """A model trained on random data under the agent; ``finish`` gives what was logged."""

    def __init__(self, engine: TransformerEngine, model: Any, recipe: Any, path: Path) -> None:
        self.engine = engine
        self.model = model
        self.recipe = recipe
        self._path = path / "run.jsonl"
        self.monitor = floatscope.watch(
            model, run="te", mode="local", log_path=self._path, strict=True, gpu=False, layer_hooks=False
        )

    def forward_backward(self, *, factor: float = 1.0, args: tuple[Any, ...] = ()) -> None:
        """One pass: forward inside the context, backward outside it."""
        x = factor * torch.randn(16, WIDTH, dtype=torch.bfloat16)
        with self.engine.te.autocast(enabled=True, recipe=self.recipe):
            out = self.model(x.requires_grad_(), *args)
        out.float().pow(2).mean().backward()

    def finish(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The run object and the rows."""
        self.monitor.finish()
        head, *rows = [json.loads(line) for line in self._path.read_text().splitlines()]
        return head["run"], rows


def linear(engine: TransformerEngine, out: int = 64) -> Any:
    return engine.te.Linear(WIDTH, out, bias=False, device="cpu", params_dtype=torch.bfloat16)


@pytest.mark.parametrize(("length", "algo"), [(1, "most_recent"), (4, "max"), (4, "most_recent")])
def test_amax_and_the_scale_used_are_those_of_the_casts(
    engine: TransformerEngine, tmp_path: Path, length: int, algo: str
) -> None:
    recipe = engine.recipes.DelayedScaling(amax_history_len=length, amax_compute_algo=algo)
    watched = Watched(
        engine,
        torch.nn.Sequential(linear(engine), torch.nn.GELU(), linear_from(engine, 64)),
        recipe,
        tmp_path,
    )
    seen: list[dict[str, tuple[float, float]]] = []
    order = ["0/input", "0/weight", "2/input", "2/weight", "2/grad_output", "0/grad_output"]
    for step in range(6):
        engine.casts.clear()
        watched.forward_backward(factor=50.0 if step == 3 else 1.0)
        seen.append({name: cast[1:] for name, cast in zip(order, engine.casts, strict=True)})
        watched.monitor.step()
    run, rows = watched.finish()

    assert len(rows) == 6
    for row, casts in zip(rows, seen, strict=True):
        assert set(row["tensors"]) == set(order), "unused slots are not reported"
        for name, (amax, scale) in casts.items():
            assert row["tensors"][name] == {"amax": amax, "scale": scale}
    assert rows[0]["tensors"]["0/input"]["scale"] == 1.0, "the first pass runs with scale 1"
    spike = rows[3]["tensors"]["0/input"]
    assert spike["amax"] * spike["scale"] / E4M3 > 10, "the spike met the scale of the steps before"
    assert run["recipe"]["name"] == "fp8_delayed_scaling"
    assert run["recipe"]["amax_history_len"] == length
    assert run["recipe"]["amax_compute_algo"] == algo
    assert run["recipe"]["fp8_format"] == "HYBRID"
    assert run["recipe"]["saturating_cast"] is True
    assert run["tensors"]["0/input"] == {"format": "e4m3", "call_order": 0}
    assert run["tensors"]["2/grad_output"] == {"format": "e5m2", "call_order": 1}


def linear_from(engine: TransformerEngine, width: int) -> Any:
    return engine.te.Linear(width, 16, bias=False, device="cpu", params_dtype=torch.bfloat16)


def test_several_passes_give_the_largest_amax_the_last_scale_and_sat(
    engine: TransformerEngine, tmp_path: Path
) -> None:
    recipe = engine.recipes.DelayedScaling(amax_history_len=1, amax_compute_algo="most_recent")
    watched = Watched(engine, torch.nn.Sequential(linear(engine)), recipe, tmp_path)
    watched.forward_backward()
    watched.monitor.step()
    engine.casts.clear()
    for factor in (1.0, 20.0, 2.0):
        watched.forward_backward(factor=factor)
    watched.monitor.step()
    _, rows = watched.finish()

    inputs = [cast[1:] for cast in engine.casts[0::3]]
    found = rows[1]["tensors"]["0/input"]
    assert rows[1]["passes"] == 3
    assert "passes" not in rows[0]
    assert found["amax"] == max(amax for amax, _ in inputs)
    assert found["scale"] == inputs[-1][1]
    assert found["sat"] == pytest.approx(max(amax * scale / E4M3 for amax, scale in inputs), rel=1e-6)
    gradients = [cast[1:] for cast in engine.casts[2::3]]
    assert rows[1]["tensors"]["0/grad_output"]["sat"] == pytest.approx(
        max(amax * scale / E5M2 for amax, scale in gradients), rel=1e-6
    )


def test_an_infinity_is_seen_and_a_nan_is_not(engine: TransformerEngine, tmp_path: Path) -> None:
    recipe = engine.recipes.DelayedScaling(amax_history_len=4)
    watched = Watched(engine, torch.nn.Sequential(linear(engine)), recipe, tmp_path)
    watched.forward_backward()
    watched.monitor.step()
    for value in (math.nan, math.inf):
        x = torch.ones(16, WIDTH, dtype=torch.bfloat16)
        x[0, 0] = value
        with engine.te.autocast(enabled=True, recipe=recipe):
            watched.model(x)
        watched.monitor.step()
    _, rows = watched.finish()
    assert rows[1]["tensors"]["0/input"]["amax"] == 1.0
    assert rows[2]["tensors"]["0/input"]["amax"] == "Infinity"


def test_layernorm_modules_name_their_gemms(engine: TransformerEngine, tmp_path: Path) -> None:
    te, options = engine.te, {"bias": False, "device": "cpu", "params_dtype": torch.bfloat16}
    model = torch.nn.Sequential()
    model.add_module("qkv", te.LayerNormLinear(WIDTH, WIDTH, **options))
    model.add_module("mlp", te.LayerNormMLP(WIDTH, 64, **options))
    watched = Watched(engine, model, engine.recipes.DelayedScaling(amax_history_len=4), tmp_path)
    for _ in range(2):
        engine.casts.clear()
        watched.forward_backward()
        watched.monitor.step()
    run, rows = watched.finish()

    layers = ("qkv", "mlp.fc1", "mlp.fc2")
    assert set(rows[1]["tensors"]) == {f"{n}/{r}" for n in layers for r in ("input", "weight", "grad_output")}
    reported = sorted(stats["amax"] for stats in rows[1]["tensors"].values())
    assert reported == sorted(amax for _, amax, _ in engine.casts)
    forward = [run["tensors"][f"{layer}/input"]["call_order"] for layer in layers]
    assert forward == sorted(forward)


def test_a_grouped_linear_layer_names_its_experts(engine: TransformerEngine, tmp_path: Path) -> None:
    grouped = engine.te.GroupedLinear(2, WIDTH, 16, bias=False, device="cpu", params_dtype=torch.bfloat16)
    watched = Watched(engine, grouped, engine.recipes.DelayedScaling(amax_history_len=4), tmp_path)
    watched.forward_backward(args=([6, 10],))
    watched.monitor.step()
    _, rows = watched.finish()
    found = rows[0]["tensors"]
    roles = ("input", "weight", "grad_output")
    assert set(found) == {f"model.experts.{i}/{role}" for i in (0, 1) for role in roles}
    for expert in (0, 1):
        weight = getattr(grouped, f"weight{expert}")
        assert found[f"model.experts.{expert}/weight"]["amax"] == float(weight.abs().max())


def test_attention_has_slots_of_its_own(engine: TransformerEngine) -> None:
    from floatscope.probes.te_slots import slots_of

    attention = engine.te.DotProductAttention(4, 8)
    attention.fp8_meta["num_gemms"] = 3
    forward = {i: slot.name for i, slot in slots_of(attention, "attn", forward=True, count=9).items()}
    backward = {i: slot.name for i, slot in slots_of(attention, "attn", forward=False, count=6).items()}
    fused: Any = importlib.import_module("transformer_engine.pytorch.cpp_extensions.fused_attn")
    assert forward == {
        int(fused.META_QKV): "attn.qkv/output",
        int(fused.META_O): "attn.o/output",
        int(fused.META_S): "attn.s/output",
    }
    assert backward == {
        int(fused.META_DQKV): "attn.qkv/grad_output",
        int(fused.META_DO): "attn.o/grad_output",
        int(fused.META_DP): "attn.s/grad_output",
    }


def lengthen_history(engine: TransformerEngine, module: Any, length: int) -> None:
    """New amax and scale tensors in both directions, in the module and in the global buffers.

    The package's own ``adjust_amax_history_length`` does this, but in 2.20.2 it registers the tensors of one
    direction for both.
    """
    state = getattr(engine.manager, "quantization_state", engine.manager)  # an object since 2.15
    fwd_pos, fwd_key, bwd_pos, bwd_key = module.fp8_meta["buffer_index_and_autocast_key"]
    for name, position, key in (("scaling_fwd", fwd_pos, fwd_key), ("scaling_bwd", bwd_pos, bwd_key)):
        found = module.fp8_meta[name]
        found.amax_history = torch.zeros(length, found.amax_history.shape[1])
        found.scale = found.scale.clone()
        module.quantizers[name] = found.make_quantizers()
        state.global_amax_history_buffer[key][position] = found.amax_history
        state.global_amax_buffer[key][position] = found.amax_history[0]
        state.global_scale_buffer[key][position] = found.scale


def test_a_scale_vector_that_is_reallocated_is_followed(engine: TransformerEngine, tmp_path: Path) -> None:
    recipe = engine.recipes.DelayedScaling(amax_history_len=4)
    watched = Watched(engine, torch.nn.Sequential(linear(engine)), recipe, tmp_path)
    for step in range(4):
        if step == 2:
            lengthen_history(engine, watched.model[0], 8)
        engine.casts.clear()
        watched.forward_backward()
        watched.monitor.step()
    _, rows = watched.finish()
    assert rows[3]["tensors"]["0/input"]["amax"] == engine.casts[0][1]
    assert rows[3]["tensors"]["0/input"]["scale"] == engine.casts[0][2]


def test_removal_puts_the_package_back(engine: TransformerEngine, tmp_path: Path) -> None:
    before = engine.manager.__dict__["reduce_and_update_fp8_tensors"]
    recipe = engine.recipes.DelayedScaling(amax_history_len=4)
    first = Watched(engine, torch.nn.Sequential(linear(engine)), recipe, tmp_path / "a")
    second = Watched(engine, torch.nn.Sequential(linear(engine)), recipe, tmp_path / "b")
    assert engine.manager.__dict__["reduce_and_update_fp8_tensors"] is not before
    first.forward_backward()
    first.monitor.step()
    _, rows = first.finish()
    assert set(rows[0]["tensors"]) == {"0/input", "0/weight", "0/grad_output"}
    second.forward_backward()
    second.monitor.step()
    second.finish()
    assert engine.manager.__dict__["reduce_and_update_fp8_tensors"] is before


def keeps_current_scales(engine: TransformerEngine) -> bool:
    """Whether quantizers of current scaling keep amax and scale, as in 2.2 to 2.15."""
    made = inspect.getsource(engine.quantizers.Float8CurrentScalingQuantizer.__init__)
    return "self.amax = " in made


def test_current_scaling_is_named_and_read_where_quantizers_keep_it(
    engine: TransformerEngine, tmp_path: Path
) -> None:
    watched = Watched(
        engine, torch.nn.Sequential(linear(engine)), engine.recipes.Float8CurrentScaling(), tmp_path
    )
    seen = []
    for factors in ([1.0], [3.0, 50.0, 2.0]):
        engine.casts.clear()
        for factor in factors:
            watched.forward_backward(factor=factor)
        seen.append([engine.casts[start::3] for start in range(3)])
        watched.monitor.step(loss=1.0)
    run, rows = watched.finish()
    assert run["recipe"]["name"] == "fp8_current_scaling"
    assert rows[0]["loss"] == 1.0
    if not keeps_current_scales(engine):
        assert "tensors" not in rows[0]
        return
    for row, casts in zip(rows, seen, strict=True):
        for name, passes in zip(("0/input", "0/weight", "0/grad_output"), casts, strict=True):
            assert row["tensors"][name] == {"amax": max(p[1] for p in passes), "scale": passes[-1][2]}
    assert run["tensors"]["0/grad_output"]["format"] == "e5m2"


def test_training_is_the_same_with_and_without_the_agent(engine: TransformerEngine, tmp_path: Path) -> None:
    def train(path: Path | None) -> torch.Tensor:
        engine.manager.reset()
        torch.manual_seed(3)
        model = torch.nn.Sequential(linear(engine), torch.nn.GELU(), linear_from(engine, 64))
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        recipe = engine.recipes.DelayedScaling(amax_history_len=4)
        monitor = None
        if path is not None:
            monitor = floatscope.watch(
                model,
                optimizer,
                run="same",
                mode="local",
                log_path=path,
                strict=True,
                gpu=False,
                stats_every=1,
            )
        for _ in range(5):
            x = torch.randn(16, WIDTH, dtype=torch.bfloat16)
            with engine.te.autocast(enabled=True, recipe=recipe):
                out = model(x)
            loss = out.float().pow(2).mean()
            loss.backward()
            optimizer.step()
            if monitor is not None:
                monitor.step(loss=loss)
            optimizer.zero_grad()
        if monitor is not None:
            monitor.finish()
        return torch.cat([p.detach().float().flatten() for p in model.parameters()])

    assert torch.equal(train(None), train(tmp_path / "run.jsonl"))


def test_a_checkpoint_without_scale_state_shows_as_scale_one(
    engine: TransformerEngine, tmp_path: Path
) -> None:
    recipe = engine.recipes.DelayedScaling(amax_history_len=4)
    watched = Watched(engine, torch.nn.Sequential(linear(engine)), recipe, tmp_path)
    watched.forward_backward()
    watched.monitor.step()
    watched.forward_backward()
    watched.monitor.step()
    meta = watched.model[0].fp8_meta["scaling_fwd"]
    meta.scale.fill_(1.0)
    meta.amax_history.zero_()
    watched.forward_backward()
    watched.monitor.step()
    _, rows = watched.finish()
    assert rows[1]["tensors"]["0/input"]["scale"] != 1.0
    assert rows[2]["tensors"]["0/input"]["scale"] == 1.0


def test_buffers_that_do_not_fit_each_other_are_passed_over(
    engine: TransformerEngine, tmp_path: Path
) -> None:
    recipe = engine.recipes.DelayedScaling(amax_history_len=4)
    watched = Watched(engine, torch.nn.Sequential(linear(engine)), recipe, tmp_path)
    watched.forward_backward()
    watched.monitor.step()
    state = getattr(engine.manager, "quantization_state", engine.manager)  # an object since 2.15
    key = next(key for key in state.global_scale_buffer if key.startswith("forward_"))
    whole = state.global_scale_buffer[key][0]
    state.global_scale_buffer[key][0] = whole[:2]
    with pytest.raises(RuntimeError, match="size"):  # the package's own update fails; the agent does not
        watched.forward_backward()
    state.global_scale_buffer[key][0] = whole
    watched.monitor.step()
    _, rows = watched.finish()
    assert "0/input" not in rows[1].get("tensors", {})
