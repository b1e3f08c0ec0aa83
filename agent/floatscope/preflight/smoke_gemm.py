"""One small GEMM in one format, held against float64 and against its own rounded operands."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from floatscope.preflight.smoke_formats import Operand, operand

Distribution = str
"""\"normal\", N(0,1): shows the format's rounding. \"uniform\", U(0,1): shows bias of sums and scales."""


@dataclass(frozen=True)
class Measured:
    """What one GEMM came to.

    relative_error: ||got - exact|| / ||exact|| (Frobenius), exact being float64 of the unrounded operands.
    kernel_error: the same against float64 of the rounded operands, so only of the kernel.  bias_pct: mean of
    the kernel's signed differences over the mean size, in percent.  emulated: no kernel of the format was
    there, the rounded operands were multiplied in float32, and those two are None.  error: why there is no
    result.
    """

    format: str
    distribution: Distribution
    shape: tuple[int, int, int]
    device: str
    relative_error: float | None = None
    kernel_error: float | None = None
    bias_pct: float | None = None
    emulated: bool = False
    seconds: float = 0.0
    error: str = ""


def matrices(m: int, k: int, n: int, distribution: Distribution, device: str) -> tuple[Any, Any]:
    """Two float32 matrices (m, k) and (n, k) with a fixed seed; the product contracts k."""
    import torch

    generator = torch.Generator().manual_seed(20)
    draw = torch.randn if distribution == "normal" else torch.rand
    return draw(m, k, generator=generator).to(device), draw(n, k, generator=generator).to(device)


def measure(
    entry: dict[str, Any], a: Any, b: Any, exact: Any, *, distribution: Distribution, device: str
) -> Measured:
    """The GEMM of one entry of the table "gemm_errors". Raises nothing of torch's: ``error`` says it.

    exact: the float64 product of a and b on the host.
    """
    began = time.perf_counter()
    shape = (a.shape[0], a.shape[1], b.shape[0])
    try:
        left, right = operand(a, entry["a"], entry["scale"]), operand(b, entry["b"], entry["scale"])
        got, emulated = _product(left, right)
        found = got.cpu().double()
        kernel_error, bias_pct = (None, None) if emulated else _of_kernel(found, left, right)
        return Measured(
            format=entry["format"],
            distribution=distribution,
            shape=shape,
            device=device,
            relative_error=float((found - exact).norm() / exact.norm()),
            kernel_error=kernel_error,
            bias_pct=bias_pct,
            emulated=emulated,
            seconds=time.perf_counter() - began,
        )
    except Exception as error:  # kernels refuse sizes, devices and formats with many kinds of exceptions
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return Measured(entry["format"], distribution, shape, device, error=text)


def _of_kernel(found: Any, left: Operand, right: Operand) -> tuple[float, float]:
    """(kernel_error, bias_pct): what is left when the rounding of the operands is taken out."""
    own = left.values.cpu().double() @ right.values.cpu().double().t()
    difference = found - own
    return float(difference.norm() / own.norm()), float(100 * difference.mean() / own.abs().mean())


def _product(left: Operand, right: Operand) -> tuple[Any, bool]:
    """(BF16 product, whether it was emulated)."""
    import torch

    if left.codes is None or right.codes is None:
        return (left.values @ right.values.t()).to(torch.bfloat16), True
    if left.codes.dtype is torch.bfloat16:
        return left.codes @ right.codes.t(), False
    scales = left.scale, right.scale if right.scale.dim() == 0 else right.scale.t().contiguous()
    return scaled_mm(left.codes, right.codes.t(), *scales), False


def scaled_mm(a: Any, b: Any, scale_a: Any, scale_b: Any, *, fast: bool = False) -> Any:
    """torch's FP8 GEMM with BF16 output; a row-major, b column-major."""
    import torch

    return torch._scaled_mm(
        a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16, use_fast_accum=fast
    )
