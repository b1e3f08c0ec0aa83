"""Quantizers: from a high-precision tensor to the values a GEMM multiplies, one class per way of choosing the
scale.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from floatscope_trainer.emulated.blocks import BlockShape, block_scales, expand_blocks
from floatscope_trainer.emulated.casts import CastMode, amax, cast_, fp8_max
from floatscope_trainer.emulated.scaling import FLT_MAX, DelayedScalingState


@dataclass(frozen=True)
class Operand:
    """One side of a GEMM.

    row: (rows, columns) float32, for products that sum over columns.  col: same shape, for products that sum
    over rows; the same tensor unless scales are per block.  scale_inv: shape (), still to be multiplied onto
    the product; None if already in the values.
    scale: what the cast multiplied with, shape () or one per block of `row`; None where nothing is scaled.
    divisor: what the values were divided by behind the cast.
    """

    row: Tensor
    col: Tensor
    scale_inv: Tensor | None
    scale: Tensor | None
    divisor: float = 1.0

    def dequantized(self) -> Tensor:
        """What the cast left of the tensor that met it, same shape: before any division behind the cast."""
        values = self.row if self.scale_inv is None else self.row * self.scale_inv
        return values if self.divisor == 1.0 else values * self.divisor

    def divided(self, factor: float) -> Operand:
        """The operand for the tensor divided by `factor`; the scale used in the cast stays."""
        divisor = self.divisor * factor
        if self.scale_inv is not None:
            return replace(self, scale_inv=self.scale_inv / factor, divisor=divisor)
        row = self.row / factor
        col = row if self.col is self.row else self.col / factor
        return replace(self, row=row, col=col, divisor=divisor)


class Quantize(Protocol):
    """From a tensor to (what met the cast, what the GEMM uses).  record: whether its amax is kept."""

    def __call__(self, values: Tensor, *, record: bool) -> tuple[Tensor, Operand]: ...


class Around(Protocol):
    """A fault at the quantizer: may change the tensor before the cast and the operand after it."""

    def __call__(self, values: Tensor, *, quantize: Quantize, record: bool) -> tuple[Tensor, Operand]: ...


class Quantizer:
    """One tensor of one GEMM.

    role: input, weight or grad_output.  fmt: name of the format.  mode: what the cast does above the maximum
    and between codes.
    arounds: injected faults, the first one nearest to the cast.  fixed_scale: replaces the scale of recipes
    without state.
    """

    def __init__(self, *, role: str, fmt: str, mode: CastMode = "saturating") -> None:
        self.role = role
        self.fmt = fmt
        self.mode: CastMode = mode
        self.arounds: list[Around] = []
        self.fixed_scale: float | None = None

    def __call__(self, values: Tensor, *, record: bool = True) -> tuple[Tensor, Operand]:
        """(the tensor that met the cast, what the GEMM uses).  values: (rows, columns) float32.  record:
        whether amax is kept.
        """
        quantize: Quantize = self._plain
        for around in self.arounds:
            quantize = partial(around, quantize=quantize)
        return quantize(values, record=record)

    def _plain(self, values: Tensor, *, record: bool) -> tuple[Tensor, Operand]:
        return values, self.quantize(values, record=record)

    def quantize(self, values: Tensor, *, record: bool) -> Operand:
        """The operand for `values`; recipes differ here only."""
        raise NotImplementedError


class RoundTrip(Quantizer):
    """No scale: values go through bf16 or fp16 and back, or stay as they are in fp32."""

    def __init__(self, *, role: str, fmt: str) -> None:
        super().__init__(role=role, fmt=fmt)
        self._dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": None}[fmt]

    def quantize(self, values: Tensor, *, record: bool) -> Operand:
        """Values as the format holds them; fp16 overflows to infinity."""
        rounded = values if self._dtype is None else values.to(self._dtype).to(torch.float32)
        return Operand(row=rounded, col=rounded, scale_inv=None, scale=None)


class DelayedQuantizer(Quantizer):
    """Scale from the state, amax into the open row of the history."""

    def __init__(self, *, role: str, fmt: str, mode: CastMode, state: DelayedScalingState, slot: int) -> None:
        super().__init__(role=role, fmt=fmt, mode=mode)
        self.state = state
        self.slot = slot

    def quantize(self, values: Tensor, *, record: bool) -> Operand:
        """As Transformer Engine's cast kernel: `atomicMax` of amax into row 0, then the cast with the scale
        in force.
        """
        if record:
            seen = self.state.amax_history[0, self.slot]
            seen.copy_(torch.fmax(seen, amax(values)))
        scale = self.state.scale[self.slot].clone()  # the update at the end of the pass writes in place
        return _per_tensor(values, scale, fmt=self.fmt, mode=self.mode)


class CurrentQuantizer(Quantizer):
    """Scale from the tensor itself (`compute_scale_from_amax` in Transformer Engine's recipe_common.cuh)."""

    def quantize(self, values: Tensor, *, record: bool) -> Operand:
        """amax 0, infinite or all NaN gives scale 1."""
        if self.fixed_scale is not None:
            scale = torch.tensor(self.fixed_scale)
        else:
            scale = scale_from_amax(amax(values), limit=fp8_max(self.fmt))
        return _per_tensor(values, scale, fmt=self.fmt, mode=self.mode)


class BlockQuantizer(Quantizer):
    """One power-of-two scale per block, along columns for `row` and along rows for `col`."""

    def __init__(self, *, role: str, fmt: str, mode: CastMode, shape: BlockShape) -> None:
        super().__init__(role=role, fmt=fmt, mode=mode)
        self.shape = shape

    def quantize(self, values: Tensor, *, record: bool) -> Operand:
        """Two casts, as the two GEMMs that read the tensor sum over different dimensions; one if blocks are
        square.
        """
        row, scale = self._cast(values)
        col = row if self.shape.is_square else self._cast(values.t())[0].t()
        return Operand(row=row, col=col, scale_inv=None, scale=scale)

    def _cast(self, values: Tensor) -> tuple[Tensor, Tensor]:
        if self.fixed_scale is not None:
            scales = torch.full(self.shape.grid(values.shape), self.fixed_scale)
        else:
            scales = block_scales(values, shape=self.shape, limit=fp8_max(self.fmt))
        spread = expand_blocks(scales, shape=self.shape, like=values)
        return cast_(values * spread, fmt=self.fmt, mode=self.mode) / spread, scales


def scale_from_amax(largest: Tensor, *, limit: float) -> Tensor:
    """limit / amax; 1 where amax is 0, infinite or NaN, FLT_MAX where the quotient is infinite. Any shape."""
    usable = torch.isfinite(largest) & (largest > 0)
    return torch.where(usable, (limit / largest).clamp(max=FLT_MAX), 1.0)


def _per_tensor(values: Tensor, scale: Tensor, *, fmt: str, mode: CastMode) -> Operand:
    cast = cast_(values * scale, fmt=fmt, mode=mode)
    return Operand(row=cast, col=cast, scale_inv=scale.reciprocal(), scale=scale)
