"""Casts to FP8 and back: what a tensor is worth after it went through float8, under three overflow rules.

The casts are torch's own float8 casts. What torch leaves to its version (E4M3 saturates in eager mode since
2.12 and gave NaN before; E5M2 does not saturate) is settled here before the cast, so that a mode means the
same on every version.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from floatscope.protocol.formats import FORMATS

CastMode = Literal["saturating", "nonsaturating", "rtz"]
CAST_MODES: tuple[CastMode, ...] = get_args(CastMode)

E4M3_FIRST_NAN = 464.0
"""Half way between 448 and 480, the value the NaN code would have: a non-saturating cast rounds 464 itself to
even, 448, and everything above to NaN (OCP OFP8 1.0, section 5.4)."""

_DTYPES = {
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "mxfp8_e4m3": torch.float8_e4m3fn,
    "mxfp8_e5m2": torch.float8_e5m2,
}


def fp8_max(fmt: str) -> float:
    """Largest finite value of the format: 448 for E4M3, 57344 for E5M2."""
    return FORMATS[fmt].max_finite


def cast_(scaled: Tensor, *, fmt: str, mode: CastMode = "saturating") -> Tensor:
    """The values that remain of `scaled` after a cast to `fmt`, in float32.

    scaled: float32, any shape, already multiplied by its scale; it is used as scratch space and must not be
    read afterwards.
    saturating: as `cvt.rn.satfinite`, above the maximum becomes the maximum, infinity too; NaN stays NaN.
    nonsaturating: E4M3 above 464 becomes NaN, E5M2 from 61440 on becomes infinity.
    rtz: the magnitude is rounded down to the next code instead of to the nearest, and saturates.
    """
    dtype = _DTYPES[fmt]
    if mode == "nonsaturating":
        return _cast_nonsaturating(scaled, dtype)
    limit = fp8_max(fmt)
    scaled.clamp_(-limit, limit)
    has_nan = math.isnan(
        scaled.sum().item()
    )  # finite after the clamp, so the sum is NaN only if an element is
    codes = scaled.to(dtype)
    values = decode(codes, has_nan=has_nan)
    if mode == "rtz":
        away = (
            values.abs() > scaled.abs()
        )  # one code down in magnitude; the sign bit is not reached as |code| > 0
        if away.any():
            values = decode((codes.view(torch.uint8) - away.to(torch.uint8)).view(dtype), has_nan=has_nan)
    return values


def _cast_nonsaturating(scaled: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype is torch.float8_e5m2:
        return decode(scaled.to(dtype), has_nan=True)
    scaled.masked_fill_(scaled.abs() > E4M3_FIRST_NAN, math.nan)
    return decode(scaled.to(dtype), has_nan=math.isnan(scaled.sum().item()))


def decode(codes: Tensor, *, has_nan: bool) -> Tensor:
    """float32 values of float8 codes.

    torch converts E4M3 at 3.7 ms per million elements on one core. Both formats are float16 with fewer
    mantissa bits, so shifting the bits into float16 and widening that, which the processor does by itself,
    gives the same values in 0.35 ms. E4M3's exponent bias is 8 smaller than float16's: times 256. Its NaN
    code would become 480, hence `has_nan`.
    """
    if codes.dtype is torch.float8_e5m2:
        return (codes.view(torch.int8).to(torch.int16) << 8).view(torch.float16).to(torch.float32)
    if has_nan:
        return codes.to(torch.float32)
    bits = (
        codes.view(torch.int8).to(torch.int16).bitwise_left_shift_(7).bitwise_and_(-0x4001)
    )  # clears bit 14
    return bits.view(torch.float16).to(torch.float32).mul_(256.0)


def amax(values: Tensor) -> Tensor:
    """Largest magnitude, shape (), as Transformer Engine's kernels compute it: `fmaxf` drops NaN and keeps
    infinity.

    0 for an empty tensor and for one that is all NaN.
    """
    if values.numel() == 0:
        return values.new_zeros(())
    low, high = values.aminmax()
    largest = torch.maximum(-low, high)
    if math.isnan(largest.item()):
        return values.abs().nan_to_num_(nan=0.0, posinf=math.inf).amax()
    return largest
