"""The emulated linear layer: its GEMMs, its state in Transformer Engine's shape, and what inspectors see."""

from __future__ import annotations

import gc

import pytest
import torch
from torch.nn import functional

from floatscope.protocol.formats import FORMATS
from floatscope_trainer.emulated.backend import EmulatedBackend
from floatscope_trainer.emulated.casts import cast_
from tests.trainer.small_runs import HISTORY, Inspections, layer, scales, take, tiny_config, tiny_training

FP8_ERROR = {"delayed": 0.06, "current": 0.06, "block": 0.06, "mxfp8": 0.06}
"""Relative error of a dot product of E4M3 operands: each is off by at most eps / 2 = 6 %, mostly far less."""


def products(precision: str, recipe: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(y, dx, dW) of a 96 x 160 layer, after a pass that sets the scales."""
    backend = EmulatedBackend(tiny_config(precision=precision, recipe=recipe))
    module = backend.layers["blocks.0.mlp.fc1"]
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        x = torch.randn(64, module.in_features, generator=generator, requires_grad=True)
        g = torch.randn(64, module.out_features, generator=generator) * 1e-3
        with backend.autocast():
            y = module(x)
        y.backward(g)
        assert x.grad is not None
        assert module.weight.grad is not None
        result = y.detach(), x.grad, module.weight.grad
        expected = functional.linear(x.detach(), module.weight.detach())
        exact = expected, g @ module.weight.detach(), g.t() @ x.detach()
        module.weight.grad = None
    errors = [(a - b).norm() / b.norm() for a, b in zip(result, exact, strict=True)]
    return errors[0], errors[1], errors[2]


@pytest.mark.parametrize("recipe", FP8_ERROR)
def test_products_are_right_within_fp8_error(recipe: str) -> None:
    forward, dgrad, wgrad = products("fp8", recipe)
    assert 1e-4 < forward < FP8_ERROR[recipe]
    assert 1e-4 < dgrad < 2 * FP8_ERROR[recipe]  # E5M2 gradients: eps is twice as large
    assert 1e-4 < wgrad < 2 * FP8_ERROR[recipe]


@pytest.mark.parametrize(("precision", "error"), [("fp32", 1e-6), ("bf16", 2.0**-8), ("fp16", 2.0**-11)])
def test_products_without_a_scale(precision: str, error: float) -> None:
    assert max(products(precision, "delayed")) < error


def test_result_is_the_product_of_the_rounded_operands() -> None:
    training = tiny_training(recipe="current")
    module = layer(training, "blocks.0.attn.proj")
    x = torch.randn(5, module.in_features)
    scale_x, scale_w = 448 / x.abs().max(), 448 / module.weight.detach().abs().max()
    by_hand = (cast_(x * scale_x, fmt="e4m3") / scale_x) @ (
        cast_(module.weight.detach() * scale_w, fmt="e4m3") / scale_w
    ).t()
    torch.testing.assert_close(module(x).detach(), by_hand, rtol=1e-5, atol=1e-7)


def test_state_has_transformer_engines_shape() -> None:
    training = tiny_training(recipe="delayed")
    module = layer(training, "blocks.1.mlp.fc2")
    meta = module.fp8_meta
    assert meta["num_gemms"] == 1
    assert meta["recipe"].delayed()
    assert not meta["recipe"].float8_current_scaling()
    assert meta["recipe"].fp8_format.name == "HYBRID"
    assert meta["scaling_fwd"].scale.shape == (3,)
    assert meta["scaling_fwd"].amax_history.shape == (HISTORY, 3)
    assert meta["scaling_bwd"].scale.shape == (2,)
    assert meta["scaling_bwd"].amax_history.shape == (HISTORY, 2)
    forward_at, key, backward_at, same_key = meta["buffer_index_and_autocast_key"]
    assert key == same_key
    shared = module.fp8_global_state
    assert shared.global_scale_buffer[f"forward_{key}"][forward_at] is meta["scaling_fwd"].scale
    history = shared.global_amax_history_buffer[f"backward_{key}"][backward_at]
    assert history is meta["scaling_bwd"].amax_history
    open_row = shared.global_amax_buffer[f"forward_{key}"][forward_at]
    assert open_row.data_ptr() == meta["scaling_fwd"].amax_history.data_ptr()


@pytest.mark.parametrize("recipe", ["current", "block", "mxfp8"])
def test_stateless_recipes_have_no_scaling_state(recipe: str) -> None:
    meta = layer(tiny_training(recipe=recipe), "blocks.0.attn.qkv").fp8_meta
    assert "scaling_fwd" not in meta
    assert "buffer_index_and_autocast_key" not in meta


def test_high_precision_layers_have_no_fp8_meta() -> None:
    assert not hasattr(layer(tiny_training(precision="bf16"), "blocks.0.attn.qkv"), "fp8_meta")


def test_models_do_not_share_state() -> None:
    one, other = tiny_training(), tiny_training()
    take(one, 1)
    name = "blocks.0.attn.qkv/scaling_fwd.scale"
    assert scales(one)[name][0] != 1.0
    assert scales(other)[name].tolist() == [1.0, 1.0, 1.0]


def test_history_holds_the_amax_that_the_casts_saw() -> None:
    training = tiny_training()
    seen = Inspections(training)
    take(training, 3)
    for tensor in ("blocks.0.mlp.fc1/input", "blocks.1.attn.qkv/grad_output"):
        name, _, role = tensor.rpartition("/")
        direction = "scaling_bwd" if role == "grad_output" else "scaling_fwd"
        history = layer(training, name).fp8_meta[direction].amax_history[:, 0]
        assert history[-3:].tolist() == [t.abs().max().item() for t in seen.seen[tensor]]


def test_scale_in_use_is_the_one_before_the_update() -> None:
    training = tiny_training()
    seen = Inspections(training)
    take(training, 2)
    first, second = seen.scale["blocks.0.mlp.fc1/input"]
    assert first is not None
    assert second is not None
    assert first.item() == 1.0
    assert second.item() == pytest.approx(448 / seen.seen["blocks.0.mlp.fc1/input"][0].abs().max().item())


def test_passes_are_counted_not_steps() -> None:
    training = tiny_training(passes=3)
    take(training, 1)
    history = layer(training, "blocks.0.attn.qkv").fp8_meta["scaling_fwd"].amax_history[:, 0]
    assert (history > 0).tolist() == [False, True, True, True]  # row 0 is open


def test_update_runs_through_the_class_so_that_a_probe_can_replace_it() -> None:
    training = tiny_training()
    state = layer(training, "blocks.0.attn.qkv").fp8_global_state
    original = state.__dict__["reduce_and_update_fp8_tensors"]
    calls: list[bool] = []

    def tapped(cls: type, forward: bool = True) -> None:
        calls.append(forward)
        original.__func__(cls, forward=forward)

    state.reduce_and_update_fp8_tensors = classmethod(tapped)  # type: ignore[method-assign, assignment]
    take(training, 2)
    assert calls == [True, False, True, False]


@pytest.mark.parametrize(
    ("precision", "recipe", "formats"),
    [
        ("fp8", "delayed", ("e4m3", "e4m3", "e5m2")),
        ("fp8", "current", ("e4m3", "e4m3", "e5m2")),
        ("fp8", "block", ("e4m3", "e4m3", "e4m3")),
        ("fp8", "mxfp8", ("mxfp8_e4m3", "mxfp8_e4m3", "mxfp8_e4m3")),
        ("bf16", "delayed", ("bf16", "bf16", "bf16")),
        ("fp16", "delayed", ("fp16", "fp16", "fp16")),
        ("fp32", "delayed", ("fp32", "fp32", "fp32")),
    ],
)
def test_inspectors_see_every_tensor_in_every_precision(
    precision: str, recipe: str, formats: tuple[str, str, str]
) -> None:
    training = tiny_training(precision=precision, recipe=recipe)
    seen = Inspections(training)
    take(training, 1)
    assert len(seen.seen) == 8 * 3
    for role, fmt in zip(("input", "weight", "grad_output"), formats, strict=True):
        name = f"blocks.1.mlp.fc1/{role}"
        tensor, used, scale = seen.seen[name][0], seen.used[name][0], seen.scale[name][0]
        assert seen.fmt[name] == fmt
        assert FORMATS[fmt].name == fmt
        assert tensor.shape == used.shape
        if precision == "fp8":
            assert scale is not None
            assert not torch.equal(tensor, used)
        else:
            assert scale is None
            assert torch.equal(tensor, used)


def test_inspection_changes_nothing_and_ends_with_its_handle() -> None:
    watched, alone = tiny_training(), tiny_training()
    seen = Inspections(watched)
    a = take(watched, 2)
    seen.handle.remove()
    seen.handle.remove()
    a += take(watched, 1)
    assert a == take(alone, 3)
    assert len(seen.seen["blocks.0.attn.qkv/input"]) == 2


def test_operands_do_not_outlive_the_step() -> None:
    training = tiny_training()
    take(training, 1)
    gc.collect()
    before = sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())
    take(training, 3)
    gc.collect()
    assert sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects()) <= before + 4
