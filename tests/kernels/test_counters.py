"""The fused kernel gives what the eager operations give: under triton's interpreter, and on a GPU."""

from __future__ import annotations

import importlib
import math
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from floatscope.probes.exponents import exponents
from floatscope.probes.measure import FIELDS, on_device
from floatscope.protocol.formats import FORMATS

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, in triton's interpreter

SPECIAL = (0.0, -0.0, math.nan, math.inf, -math.inf, 1e-30, -1e30, 3e38, 1e-40, 7e4, 1e-9)
SHAPES = ((1,), (3, 5), (16, 300), (2, 33, 128))
CASES = ("plain", "fp16", "e4m3", "mxfp8_e4m3", "odd scales", "bad scale", "infinite scale", "blocks 128")


@pytest.fixture
def fused() -> Any:
    """The kernel's module."""
    return importlib.import_module("floatscope.probes.counters_triton")


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def values(shape: tuple[int, ...], dtype: torch.dtype, *, special: bool) -> Tensor:
    made = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(shape, generator=made) * torch.exp2(torch.randint(-30, 20, shape, generator=made).float())
    if special:
        flat = x.view(-1)
        for k in range(0, len(flat), 5):
            flat[k] = SPECIAL[(k // 5) % len(SPECIAL)]
            if dtype is torch.bfloat16 and 0 < abs(float(flat[k])) < 2.0**-126 and device() == "cpu":
                flat[k] = 1.0  # the interpreter takes subnormal bfloat16 for zero; devices do not
    return x.to(dtype).to(device())


def case(name: str, x: Tensor) -> tuple[Any, ...]:
    """used, scale, format."""
    if name == "plain":
        return None, None, FORMATS["bf16"]
    if name == "fp16":
        return None, None, FORMATS["fp16"]
    columns = x.shape[-1]
    rows = x.numel() // columns
    scale = torch.full((), 0.5, device=x.device)
    if name == "bad scale":
        scale = torch.full((), math.nan, device=x.device)
    if name == "infinite scale":
        scale = torch.full((), math.inf, device=x.device)
    if name == "mxfp8_e4m3":
        scale = torch.rand(rows, -(-columns // 32), device=x.device) + 0.1
    if name == "blocks 128":
        scale = torch.rand(-(-rows // 128), -(-columns // 128), device=x.device) + 0.1
    if name == "odd scales":
        scale = torch.ones(3, 7, device=x.device)
    used = (x.float() * 0.5).clamp(-448, 448).to(torch.float8_e4m3fn).to(x.dtype) / 0.5
    return used, scale, FORMATS["mxfp8_e4m3" if name == "mxfp8_e4m3" else "e4m3"]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float32) for name in CASES),
        *((name, dtype) for name in ("plain", "fp16", "e4m3") for dtype in (torch.bfloat16, torch.float16)),
    ],
)
@pytest.mark.parametrize("special", [True, False])
def test_one_pass_finds_what_the_eager_operations_find(
    fused: Any, name: str, dtype: torch.dtype, special: bool
) -> None:
    """Counts are equal, sizes agree to float32, for every kind of scale, odd lengths and special values."""
    for shape in SHAPES:
        x = values(shape, dtype, special=special)
        used, scale, fmt = case(name, x)
        wanted = on_device(x, used, scale, fmt).cpu()
        found = fused.measure(x, used, scale, fmt, with_histogram=False)[0].cpu()
        for index, field in enumerate(FIELDS):
            a, b = float(found[index]), float(wanted[index])
            if field in ("norm", "signal", "noise"):
                assert a == pytest.approx(b, rel=1e-4, abs=1e-37), (field, shape)
            else:
                assert repr(a) == repr(b), (field, shape)


def test_a_tensor_that_is_not_contiguous_and_one_of_nothing_but_nan(fused: Any) -> None:
    """A transposed view counts as what it shows; amax of nothing but NaN is NaN."""
    x = values((64, 300), torch.float32, special=True).t()
    found, histogram = fused.measure(x, None, None, None, with_histogram=True)
    wanted = on_device(x, None, None, None)
    assert torch.allclose(found.nan_to_num(-7), wanted.nan_to_num(-7), rtol=1e-4)
    assert torch.equal(histogram, exponents(x))
    nothing = torch.full((100,), math.nan, device=device())
    assert math.isnan(float(fused.measure(nothing, None, None, None, with_histogram=False)[0][1]))


def test_more_elements_than_programs_can_take_at_once(fused: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each program takes several turns; nothing is left out or counted twice at the seams."""
    monkeypatch.setattr(fused, "MOST_PROGRAMS", 4)
    monkeypatch.setattr(fused, "BLOCK", 64)
    for n in (255, 257, 4 * 64 * 3 + 1):
        x = values((n,), torch.float32, special=True)
        found = fused.measure(x, None, None, FORMATS["fp16"], with_histogram=False)[0]
        wanted = on_device(x, None, None, FORMATS["fp16"])
        assert torch.equal(found[3:8], wanted[3:8])


COMPILED = """
import importlib, warnings
warnings.simplefilter("ignore")
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
kernels = importlib.import_module("floatscope.probes.counters_triton")
whole = dict.fromkeys(("n", "per_program", "columns", "block_rows", "block_columns", "across"), "i32")
for mode, x in ((0, "*bf16"), (1, "*fp32"), (2, "*fp16")):
    counted = {"x_ptr": x, "used_ptr": x, "scale_ptr": "*fp32", "parts_ptr": "*fp64", **whole}
    counted["limit"] = "fp32"
    finished = {"parts_ptr": "*fp64", "scale_ptr": "*fp32", "out_ptr": "*fp32"}
    for kernel, signature, constants in (
        (kernels._count, counted, {"MODE": mode, "HAS_SPREAD": mode == 2, "BLOCK": 2048}),
        (kernels._finish, {**finished, **dict.fromkeys(("programs", "n", "scales"), "i32")},
         {"MODE": mode, "HAS_OVER": mode > 0, "ROWS": 1024, "SCALES": 1024}),
        (kernels._finish, {**finished, **dict.fromkeys(("programs", "n", "scales"), "constexpr")},
         {"programs": 1, "n": 1, "scales": 1, "MODE": mode, "HAS_OVER": mode > 0, "ROWS": 1024,
          "SCALES": 1024}),
    ):
        names = dict.fromkeys((name for name in constants if name not in signature), "constexpr")
        source = ASTSource(kernel, {**signature, **names}, constexprs=constants)
        code = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]
        print(len(code))
"""


def test_the_kernels_compile_for_a_gpu() -> None:
    """To machine code of a Hopper GPU, for each kind of cast; the interpreter would take more than that."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", COMPILED], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout.split()) == 9


@pytest.mark.gpu
def test_the_fused_kernel_waits_for_nothing(fused: Any) -> None:
    """With synchronisation made an error, after the first call has compiled it."""
    x = values((64, 300), torch.bfloat16, special=True)
    used, scale, fmt = case("e4m3", x)
    fused.measure(x, used, scale, fmt, with_histogram=True)
    torch.cuda.set_sync_debug_mode("error")
    try:
        fused.measure(x, used, scale, fmt, with_histogram=True)
    finally:
        torch.cuda.set_sync_debug_mode("default")
