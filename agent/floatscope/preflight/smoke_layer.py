"""One layer of the chosen library, forward and backward: the only proof that a recipe computes at all."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from floatscope.preflight.check import Check, Status
from floatscope.preflight.facts import Facts, Wanted
from floatscope.preflight.shape_layers import gemms_of
from floatscope.preflight.shape_rules import library_of
from floatscope.preflight.table_reading import read_table

Layer = tuple[Any, Callable[[], AbstractContextManager[Any]]]
"""A module in BF16 and what its forward runs inside of."""
PASSES = 3
"""Delayed scaling has a scale of its own from the second on."""
_MOST = 4096
_NAMES = {"forward": "output", "grad_input": "input gradient", "grad_weight": "weight gradient"}
_TE = {
    "fp8_delayed_scaling": "DelayedScaling",
    "fp8_current_scaling": "Float8CurrentScaling",
    "fp8_block_scaling": "Float8BlockScaling",
    "mxfp8": "MXFP8BlockScaling",
    "nvfp4": "NVFP4BlockScaling",
}
_AO = {"ao_tensorwise": "tensorwise", "ao_rowwise": "rowwise"}


def layer_checks(
    facts: Facts,
    wanted: Wanted,
    *,
    device: str,
    make: Callable[[str, str, int, int, str], Layer] | None = None,
) -> list[Check]:
    """A check of one layer of the wanted recipe at the model's own size; none without a recipe of its own.

    make: makes the layer of (library, recipe, K, N, device).
    """
    library = library_of(wanted)
    expected = read_table("smoke_speed")["layers"].get(library, {}).get(wanted.recipe)
    if expected is None:
        return []
    tokens, k, n = size_of(wanted)
    read = f"one {library} layer in {wanted.recipe}, T {tokens:,}, K {k:,}, N {n:,} on {device}"
    try:
        layer = (make or make_layer)(library, wanted.recipe, k, n, device)
        errors = measure_layer(layer, tokens, k, n, device)
    except ImportError as error:
        return [_check("unknown", f"{read}: {error}", f"{library} cannot be imported here")]
    except Exception as error:  # a library raises what it likes, and that is the finding
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return [_check("fail", f"{read}: {text}", "the first step of a run would raise the same")]
    status, why = judge(errors, expected)
    shown = ", ".join(f"{_NAMES[name]} error {value:.4f}" for name, value in errors.items())
    return [_check(status, f"{read}: {shown}", why)]


def size_of(wanted: Wanted) -> tuple[int, int, int]:
    """(T, K, N) of the model's first MLP layer, each at most 4,096 and a multiple of 128."""
    if wanted.model is None:
        return 1024, 4096, 1024
    gemms = gemms_of(wanted.model, wanted)
    one = next((gemm for gemm in gemms if gemm.kind in ("mlp", "expert")), gemms[0])
    tokens, k, n = (max(128, min(size, _MOST) // 128 * 128) for size in (one.tokens, one.k, one.n))
    return tokens, k, n


def measure_layer(layer: Layer, tokens: int, k: int, n: int, device: str) -> dict[str, float]:
    """Relative Frobenius errors of output and both gradients against float32 of the same BF16 values."""
    import torch

    module, around = layer
    generator = torch.Generator().manual_seed(20)
    x = torch.randn(tokens, k, generator=generator).to(device, torch.bfloat16).requires_grad_()
    gradient = torch.randn(tokens, n, generator=generator).to(device, torch.bfloat16)
    weight = next(parameter for parameter in module.parameters() if tuple(parameter.shape) == (n, k))
    with torch.no_grad():
        weight.copy_(torch.randn(n, k, generator=generator).to(device, torch.bfloat16))
    for _ in range(PASSES):
        x.grad, weight.grad = None, None
        with around():
            out = module(x)
        out.backward(gradient)
    exact = x.detach().float(), weight.detach().float(), gradient.float()
    pairs = {
        "forward": (out, exact[0] @ exact[1].t()),
        "grad_input": (x.grad, exact[2] @ exact[1]),
        "grad_weight": (weight.grad, exact[2].t() @ exact[0]),
    }
    return {name: _relative(got, true) for name, (got, true) in pairs.items()}


def _relative(got: Any, true: Any) -> float:
    if got is None:
        return math.nan
    return float((got.detach().float() - true).norm() / true.norm())


def judge(errors: Mapping[str, float], expected: Mapping[str, float]) -> tuple[Status, str]:
    """The verdict over all three GEMMs, by the bands of the table "gemm_errors"."""
    table = read_table("gemm_errors")
    warned = ""
    for name, value in errors.items():
        own = expected["forward" if name == "forward" else "backward"]
        what = _NAMES[name]
        if not math.isfinite(value):
            return "fail", f"the {what} is missing or not a number"
        if value >= table["wrong_scale"]["from"]:
            return "fail", f"the {what} is all zero or of a wrong scale: training would learn nothing of it"
        if value <= table["not_used"]["expected"] * (1 + table["not_used"]["within_pct"] / 100):
            return "fail", f"the {what} has BF16's error: FP8 is not used"
        off = 100 * abs(value / own - 1)
        if off > table["bands"]["warn_pct"]:
            return "fail", f"the {what} is {off:.0f} % off what this recipe gives ({own:.4f})"
        if off > table["bands"]["pass_pct"]:
            warned = warned or f"the {what} is {off:.0f} % off what this recipe gives ({own:.4f})"
    return ("warn", warned) if warned else ("pass", "forward and backward come out as this recipe gives")


def make_layer(library: str, recipe: str, k: int, n: int, device: str) -> Layer:
    """The library's own layer in BF16. Raises what the library raises."""
    import torch

    if library == "torchao":
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        plain = torch.nn.Sequential(torch.nn.Linear(k, n, bias=False, device=device, dtype=torch.bfloat16))
        config = Float8LinearConfig.from_recipe_name(_AO[recipe])
        return convert_to_float8_training(plain, config=config), contextlib.nullcontext
    import transformer_engine.pytorch as te
    from transformer_engine.common import recipe as recipes

    chosen = getattr(recipes, _TE[recipe])()
    module = te.Linear(k, n, bias=False, params_dtype=torch.bfloat16, device=device)
    if hasattr(te, "autocast"):
        return module, lambda: te.autocast(enabled=True, recipe=chosen)
    return module, lambda: te.fp8_autocast(enabled=True, fp8_recipe=chosen)


def _check(status: Status, read: str, why: str) -> Check:
    do = "" if status == "pass" else "do not start the run before this passes"
    source = read_table("smoke_speed")["layers"]["source"]
    return Check("gemm.layer", "gemm", status, read, why, do, source)
