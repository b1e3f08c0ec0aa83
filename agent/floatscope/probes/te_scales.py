"""What a quantised tensor of Transformer Engine says about its cast, read without its kernels.

Told by attributes, not by class: names of classes differ between versions, and internal tensors have classes
of their own. Layouts as in transformer_engine/pytorch/tensor/: ``_scale_inv`` is the inverse of the
protocol's scale; scales of blocks are padded to multiples of 4 or 128, those of 1 x 128 blocks lie
transposed, those of MX are exponents (E8M0), those of NVFP4 are E4M3 bytes under one amax for the tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from floatscope.probes.blocks import block_shape, spread_scale
from floatscope.probes.row_sample import ALL_ROWS, RowSample

_DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
_FP4_MAX = 6.0
_E4M3_MAX, _E4M3_SMALLEST = 448.0, 2.0**-9
_BLOCK, _MX_BLOCK, _FP4_BLOCK = 128, 32, 16


@dataclass(frozen=True)
class Scales:
    """Scales of one tensor, in the protocol's sense: what values were multiplied by before the cast.

    fmt: the format's name in the protocol.  scale: shape () or (blocks down, blocks across), in the order of
    the tensor's elements seen as a matrix.  amax: what the scale was made from where the tensor keeps it.
    """

    fmt: str
    scale: Tensor
    amax: Tensor | None = None


def is_quantised(tensor: Any) -> bool:
    """Whether it is one of Transformer Engine's quantised tensors."""
    return hasattr(tensor, "_scale_inv") or hasattr(tensor, "_rowwise_scale_inv")


def scales_of(tensor: Any) -> Scales | None:
    """The scales of a quantised tensor's rows; None if it has none, or in an order that only a GEMM knows."""
    inverse = getattr(tensor, "_scale_inv", None)
    if isinstance(inverse, Tensor):
        fmt = _format(tensor)
        return (
            Scales(fmt, 1.0 / inverse.detach().float().reshape(())) if fmt and inverse.numel() == 1 else None
        )
    codes, stored = _rowwise(tensor)
    if codes is None or stored is None or getattr(tensor, "_with_gemm_swizzled_scales", False):
        return None
    if hasattr(tensor, "_amax_rowwise"):
        return _fp4(tensor, codes, stored)
    rows, columns = _shape(codes)
    fmt = _format(tensor)
    if fmt is None:
        return None
    if stored.dtype == torch.uint8:
        corner = _corner(stored, rows, -(-columns // _MX_BLOCK))
        return None if corner is None else Scales(f"mxfp8_{fmt}", _exponents(corner))
    down = rows
    if getattr(tensor, "_is_2D_scaled", False):
        down = -(-rows // _BLOCK)
    elif "COMPACT" not in str(getattr(tensor, "_data_format", "")):  # COMPACT: up to 2.14, for gathers
        stored = stored.t()
    corner = _corner(stored, down, -(-columns // _BLOCK))
    return None if corner is None else Scales(fmt, 1.0 / corner.float())


def codes_of(tensor: Any, found: Scales) -> Tensor | None:
    """The codes that the GEMM uses, as a matrix of bytes; None where they are not there."""
    codes = None if found.fmt == "nvfp4" else getattr(tensor, "_data", None)
    if not isinstance(codes, Tensor):
        codes = _rowwise(tensor)[0]
    return None if codes is None else codes.detach().reshape(-1, codes.shape[-1])


def is_cast_of(tensor: Any, found: Scales, x: Tensor) -> bool:
    """Whether the values of the cast tensor x can be had from its codes, element for element."""
    codes = codes_of(tensor, found)
    if codes is None or not x.dim():
        return False
    per_byte = 2 if found.fmt == "nvfp4" else 1
    if (codes.numel() * per_byte, codes.shape[-1] * per_byte) != (x.numel(), x.shape[-1]):
        return False
    return found.scale.numel() == 1 or block_shape(found.scale, x) is not None


def dequantised(tensor: Any, found: Scales, sample: RowSample = ALL_ROWS) -> Tensor | None:
    """The values that the GEMM uses, float32, as a matrix; None where the codes are not there.

    sample: which rows.
    """
    codes = codes_of(tensor, found)
    if codes is None:
        return None
    codes = sample.of(codes)
    if found.fmt == "nvfp4":
        values = _unpack(codes)
    else:
        values = codes.view(_DTYPES[found.fmt.removeprefix("mxfp8_")]).float()
    spread = spread_scale(sample.scales(found.scale), values)
    return None if spread is None else values / spread


def smallest(found: Scales) -> Tensor:
    """The scale that stands for all blocks, shape (): the smallest; one that is not finite comes first."""
    largest = found.scale.amax()
    return torch.where(torch.isfinite(largest), found.scale.amin(), largest)


def _rowwise(tensor: Any) -> tuple[Tensor | None, Tensor | None]:
    codes = getattr(tensor, "_rowwise_data", None)
    stored = getattr(tensor, "_rowwise_scale_inv", None)
    if not isinstance(codes, Tensor) or not isinstance(stored, Tensor) or stored.dim() != 2:
        return None, None
    return codes.detach(), stored.detach()


def _corner(grid: Tensor, down: int, across: int) -> Tensor | None:
    """What is not padding; None if there is less than that."""
    if grid.shape[0] < down or grid.shape[1] < across:
        return None
    return grid.narrow(0, 0, down).narrow(1, 0, across)


def _shape(codes: Tensor) -> tuple[int, int]:
    columns = codes.shape[-1]
    return codes.numel() // max(columns, 1), columns


def _format(tensor: Any) -> str | None:
    name = getattr(tensor, "_fp8_dtype", None)
    text = str(getattr(name, "name", name)).lower()
    return "e4m3" if text.endswith("e4m3") else "e5m2" if text.endswith("e5m2") else None


def _exponents(codes: Tensor) -> Tensor:
    """E8M0 codes of inverse scales as scales: 2^(127 - code), and NaN for 255."""
    scale = torch.exp2(127.0 - codes.float())
    return torch.where(codes == 255, torch.nan, scale)


def _fp4(tensor: Any, packed: Tensor, stored: Tensor) -> Scales | None:
    amax = tensor._amax_rowwise
    if not isinstance(amax, Tensor):
        return None
    rows, columns = _shape(packed)
    corner = _corner(stored, rows, -(-2 * columns // _FP4_BLOCK))
    if corner is None:
        return None
    block = corner.contiguous().view(torch.float8_e4m3fn).float()
    limit = _FP4_MAX * float(getattr(tensor, "_nvfp4_e4m3_max", _E4M3_MAX))
    amax = amax.detach().float().reshape(-1, 1)  # one, or one per row
    if amax.shape[0] not in (1, rows):
        return None
    whole = limit / torch.where(amax == 0, limit, amax)
    return Scales("nvfp4", whole / block.clamp(min=_E4M3_SMALLEST), amax.amax())  # a block of zeros has 0


def _unpack(packed: Tensor) -> Tensor:
    """E2M1 codes, two a byte, the first in the low half, as (rows, columns)."""
    codes = packed.reshape(-1, packed.shape[-1])
    codes = torch.stack([codes & 15, codes >> 4], dim=-1).reshape(codes.shape[0], -1)
    exponent, half = ((codes >> 1) & 3).float(), 0.5 * (codes & 1).float()
    size = torch.where(exponent == 0, half, (1.0 + half) * torch.exp2(exponent - 1.0))
    return torch.where(codes >= 8, -size, size)
