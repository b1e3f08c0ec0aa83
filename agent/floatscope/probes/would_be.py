"""What a tensor would lose in a format that nobody casts it to: what if this layer ran in FP8?

Scales are those of a recipe without history, taken from the tensor itself, as current scaling does in
Transformer Engine and torchao: largest finite value of the format over amax, per tensor, or per block of 32
(MX) or 16 (NVFP4) elements. Nothing here looks at a value, so it works on any device without waiting.
"""

from __future__ import annotations

import torch
from torch import Tensor

from floatscope.probes.blocks import spread_scale
from floatscope.protocol.formats import FloatFormat

_DTYPES = {
    "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "e4m3fnuz": "float8_e4m3fnuz",
    "mxfp8_e4m3": "float8_e4m3fn", "mxfp8_e5m2": "float8_e5m2",
    "fp16": "float16", "bf16": "bfloat16", "fp32": "float32",
}  # fmt: skip


def cast_as(x: Tensor, fmt: FloatFormat) -> tuple[Tensor, Tensor]:
    """What a GEMM would use in place of x, float32, and the scale: shape () or one per block.

    x: real floating-point, at least one element.  Non-finite elements do not enter a scale, as in Transformer
    Engine's kernels; they stay what the format makes of them.
    """
    wide = x.float()
    if not fmt.is_scaled:
        return wide.to(getattr(torch, _DTYPES[fmt.name])).float(), torch.ones((), device=x.device)
    scale = _tensor_scale(wide, fmt) if fmt.block_size is None else _block_scales(wide, fmt)
    spread = spread_scale(scale, wide)
    assert spread is not None  # the scales were made for this shape
    scaled = wide * spread
    scaled = torch.where(scaled.isnan(), scaled, scaled.clamp(-fmt.max_finite, fmt.max_finite))
    if fmt.name == "nvfp4":
        return _round_to_e2m1(scaled) / spread, scale
    return scaled.to(getattr(torch, _DTYPES[fmt.name])).float() / spread, scale


def _finite_size(x: Tensor) -> Tensor:
    return torch.nan_to_num(x.abs(), nan=0.0, posinf=0.0)


def _tensor_scale(x: Tensor, fmt: FloatFormat) -> Tensor:
    amax = _finite_size(x).amax()
    scale = fmt.max_finite / torch.where(amax > 0, amax, fmt.max_finite)
    return torch.where(torch.isfinite(scale), scale, torch.finfo(torch.float32).max)


def _block_scales(x: Tensor, fmt: FloatFormat) -> Tensor:
    """(rows, blocks across): powers of two for MX, e4m3 times a scale of the tensor for NVFP4."""
    assert fmt.block_size is not None
    columns = x.shape[-1] if x.dim() else 1
    rows = x.numel() // columns
    side = min(fmt.block_size, columns)
    across = -(-columns // side)
    padded = torch.nn.functional.pad(_finite_size(x).reshape(rows, columns), (0, across * side - columns))
    amax = padded.view(rows, across, side).amax(dim=2)
    if fmt.name == "nvfp4":
        largest_of_e4m3 = 448.0
        whole = torch.where(amax.amax() > 0, amax.amax(), 1.0) / (fmt.max_finite * largest_of_e4m3)
        inverse = (amax / fmt.max_finite / whole).clamp(max=largest_of_e4m3).to(torch.float8_e4m3fn).float()
        inverse = inverse * whole
        return torch.where(inverse > 0, 1.0 / inverse, 1.0)
    exponent = torch.ceil(torch.log2(torch.where(amax > 0, amax, fmt.max_finite) / fmt.max_finite))
    return torch.exp2(-exponent.clamp(-127, 127))


def _round_to_e2m1(x: Tensor) -> Tensor:
    """To the nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6, ties to the even code; x is within +-6 or NaN."""
    size = x.abs()
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    return torch.round(x / step) * step
