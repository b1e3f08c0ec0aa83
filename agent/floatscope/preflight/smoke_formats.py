"""Operands of a smoke GEMM in a number format: values scaled and rounded with torch's own casts.

Grids and scales: OCP 8-bit floating point and microscaling formats specifications 1.0; Transformer Engine
rounds MX scales up, 2^ceil(log2(amax / max)); NVFP4 has one E4M3 scale for 16 values times one FP32 scale for
the tensor, amax / (448 * 6).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MAX = {"e4m3": 448.0, "e5m2": 57344.0, "e2m1": 6.0}
EXPONENT = {"e4m3": 8, "e5m2": 15, "e2m1": 2}
"""emax of the OCP floor rule, 2^(floor(log2 amax) - emax)."""
TORCH = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
BLOCK = {"block128": 128, "mx_up": 32, "mx_floor": 32, "nvfp4": 16}


@dataclass(frozen=True)
class Operand:
    """A matrix whose last dimension is contracted.

    codes: in an 8-bit dtype where torch's own GEMM can take them, else None. scale: what codes are multiplied
    by, one or one a row.  values: float32 values after rounding.
    """

    values: Any
    codes: Any = None
    scale: Any = None


def operand(x: Any, form: str, scale: str) -> Operand:
    """x, float32 and contracted over its last dimension, as the format makes it.

    form: "bf16", "e4m3", "e5m2" or "e2m1".  scale: "none", "tensor", "row" or a key of BLOCK.
    """
    import torch

    if form == "bf16":
        codes = x.to(torch.bfloat16)
        return Operand(codes.float(), codes)
    if scale in ("tensor", "row"):
        amax = x.abs().amax(dim=-1, keepdim=True) if scale == "row" else x.abs().amax()
        factor = (amax / MAX[form]).clamp_min(torch.finfo(torch.float32).tiny)
        codes = (x / factor).to(getattr(torch, TORCH[form]))
        return Operand(codes.float() * factor, codes, factor)
    return Operand(_blocks(x, form, scale))


def _blocks(x: Any, form: str, scale: str) -> Any:
    """Values after rounding in blocks of the last dimension, which must be a multiple of the block."""
    import torch

    parts = x.reshape(*x.shape[:-1], -1, BLOCK[scale])
    amax = parts.abs().amax(dim=-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    factor = _factors(amax, form, scale, x)
    return (_rounded(parts / factor, form) * factor).reshape(x.shape)


def _factors(amax: Any, form: str, scale: str, x: Any) -> Any:
    import torch

    if scale == "nvfp4":
        whole = x.abs().amax() / (MAX["e4m3"] * MAX[form])
        own = (amax / MAX[form] / whole).clamp(max=MAX["e4m3"]).to(torch.float8_e4m3fn).float()
        return own.clamp_min(2.0**-9) * whole
    if scale == "mx_floor":
        return torch.exp2(torch.floor(torch.log2(amax)) - EXPONENT[form])
    return torch.exp2(torch.ceil(torch.log2(amax / MAX[form])))


def _rounded(values: Any, form: str) -> Any:
    """To the nearest value of the format, beyond its largest cut off."""
    import torch

    inside = values.clamp(-MAX[form], MAX[form])
    if form != "e2m1":
        return inside.to(getattr(torch, TORCH[form])).float()
    size = inside.abs()  # steps of E2M1: 0.5 up to 2, 1 up to 4, 2 up to 6; ties to even as torch rounds
    step = torch.where(size < 2.0, 0.5, torch.where(size < 4.0, 1.0, 2.0))
    return torch.sign(inside) * torch.round(size / step) * step
