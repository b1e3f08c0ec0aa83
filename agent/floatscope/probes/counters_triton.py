"""The fused kernel: everything that ``measure.on_device`` finds, in one pass over a tensor and its cast.

Two launches per tensor: each program of the first counts a share of the elements and writes one row of
partial results, one program of the second puts the rows together. Nothing is added by atomics, so the same
tensor always gives the same numbers. Sums of squares are kept in float64, which has room for every square of
a float32. Imported only where there is triton and a device for it (see ``counters``).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from floatscope.probes.blocks import block_amax, block_shape
from floatscope.probes.exponents import exponents
from floatscope.probes.measure import FIELDS, NOT_MEASURED, cast_limit
from floatscope.protocol.formats import FloatFormat

BLOCK = 2048  # elements that a program looks at at a time
MOST_PROGRAMS = 1024  # rows of partial results; several for each multiprocessor of the largest GPUs

UNCAST, FP16, CAST = 0, 1, 2
"""What is known of the cast: nothing; that the tensor is stored in fp16; the cast itself."""


@triton.jit  # type: ignore[untyped-decorator]
def _count(  # type: ignore[no-untyped-def]
    x_ptr,
    used_ptr,
    scale_ptr,
    parts_ptr,
    n,
    per_program,
    columns,
    block_rows,
    block_columns,
    across,
    limit,
    MODE: tl.constexpr,
    HAS_SPREAD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row of ``parts``: amax, then counts and sums of squares, of one program's share."""
    program = tl.program_id(0)
    start = program.to(tl.int64) * per_program
    lane = tl.arange(0, BLOCK)
    nan = tl.zeros((BLOCK,), tl.int32)
    inf = tl.zeros((BLOCK,), tl.int32)
    zero = tl.zeros((BLOCK,), tl.int32)
    over = tl.zeros((BLOCK,), tl.int32)
    under = tl.zeros((BLOCK,), tl.int32)
    amax = tl.zeros((BLOCK,), tl.float32)
    squares = tl.zeros((BLOCK,), tl.float64)
    signal = tl.zeros((BLOCK,), tl.float64)
    noise = tl.zeros((BLOCK,), tl.float64)
    for at in range(0, per_program, BLOCK):
        place = start + at + lane
        inside = (place < n) & (at + lane < per_program)
        x = tl.load(x_ptr + place, mask=inside, other=1.0).to(tl.float32)
        size = tl.abs(x)
        is_nan = x != x
        is_inf = size == float("inf")
        finite = inside & (size < float("inf"))  # false for NaN
        nan += (inside & is_nan).to(tl.int32)
        inf += (inside & is_inf).to(tl.int32)
        zero += (inside & (x == 0.0)).to(tl.int32)
        amax = tl.maximum(amax, tl.where(inside & (size >= 0.0), size, 0.0))
        wide = tl.where(finite, x, 0.0).to(tl.float64)
        squares += wide * wide
        if MODE == 1:
            over += (inside & (size > limit)).to(tl.int32)
            under += (inside & (x != 0.0) & (x.to(tl.float16) == 0.0)).to(tl.int32)
        if MODE == 2:
            used = tl.load(used_ptr + place, mask=inside, other=1.0).to(tl.float32)
            under += (inside & (x != 0.0) & (used == 0.0)).to(tl.int32)
            both = finite & (tl.abs(used) < float("inf"))
            clean = tl.where(both, wide, 0.0)
            kept = tl.where(both, used, 0.0).to(tl.float64)
            signal += clean * clean
            noise += (clean - kept) * (clean - kept)
            if HAS_SPREAD:
                row = (place // columns) // block_rows
                column = (place % columns) // block_columns
                scale = tl.load(scale_ptr + row * across + column, mask=inside, other=0.0).to(tl.float32)
                over += (inside & (size * scale > limit)).to(tl.int32)
    out = parts_ptr + program * 9
    tl.store(out, tl.max(amax, 0).to(tl.float64))
    tl.store(out + 1, tl.sum(nan, 0).to(tl.float64))
    tl.store(out + 2, tl.sum(inf, 0).to(tl.float64))
    tl.store(out + 3, tl.sum(zero, 0).to(tl.float64))
    tl.store(out + 4, tl.sum(over, 0).to(tl.float64))
    tl.store(out + 5, tl.sum(under, 0).to(tl.float64))
    tl.store(out + 6, tl.sum(squares, 0))
    tl.store(out + 7, tl.sum(signal, 0))
    tl.store(out + 8, tl.sum(noise, 0))


@triton.jit  # type: ignore[untyped-decorator]
def _finish(  # type: ignore[no-untyped-def]
    parts_ptr,
    scale_ptr,
    out_ptr,
    programs,
    n,
    scales,
    MODE: tl.constexpr,
    HAS_OVER: tl.constexpr,
    ROWS: tl.constexpr,
    SCALES: tl.constexpr,
):
    """The vector of ``measure.on_device``, except the smallest amax of a block."""
    row = tl.arange(0, ROWS)
    inside = row < programs
    at = parts_ptr + row * 9
    amax = tl.max(tl.load(at, mask=inside, other=0.0), 0)
    nan = tl.sum(tl.load(at + 1, mask=inside, other=0.0), 0)
    inf = tl.sum(tl.load(at + 2, mask=inside, other=0.0), 0)
    zero = tl.sum(tl.load(at + 3, mask=inside, other=0.0), 0)
    over = tl.sum(tl.load(at + 4, mask=inside, other=0.0), 0)
    under = tl.sum(tl.load(at + 5, mask=inside, other=0.0), 0)
    count = tl.full((), 0.0, tl.float64) + n  # an n of 1 is a constant to the compiler
    root = tl.sqrt(tl.sum(tl.load(at + 6, mask=inside, other=0.0), 0) / count)
    signal = tl.sqrt(tl.sum(tl.load(at + 7, mask=inside, other=0.0), 0) / count)
    noise = tl.sqrt(tl.sum(tl.load(at + 8, mask=inside, other=0.0), 0) / count)
    tl.store(out_ptr, count.to(tl.float32))
    tl.store(out_ptr + 1, tl.where(nan == count, float("nan"), amax).to(tl.float32))
    tl.store(out_ptr + 2, root.to(tl.float32))
    tl.store(out_ptr + 3, nan.to(tl.float32))
    tl.store(out_ptr + 4, inf.to(tl.float32))
    tl.store(out_ptr + 5, zero.to(tl.float32))
    if HAS_OVER:
        tl.store(out_ptr + 6, over.to(tl.float32))
    else:
        tl.store(out_ptr + 6, -1.0)
    if MODE == 0:
        tl.store(out_ptr + 7, -1.0)
    else:
        tl.store(out_ptr + 7, under.to(tl.float32))
    if MODE == 2:
        tl.store(out_ptr + 8, signal.to(tl.float32))
        tl.store(out_ptr + 9, noise.to(tl.float32))
        smallest = tl.full((SCALES,), float("inf"), tl.float32)
        largest = tl.full((SCALES,), 0.0, tl.float32)
        bad = tl.zeros((SCALES,), tl.int32)
        for start in range(0, scales, SCALES):
            place = start + tl.arange(0, SCALES)
            scale = tl.load(scale_ptr + place, mask=place < scales, other=1.0).to(tl.float32)
            here = place < scales
            bad = tl.maximum(bad, (here & (scale != scale)).to(tl.int32))
            smallest = tl.minimum(smallest, tl.where(here & (scale == scale), scale, float("inf")))
            largest = tl.maximum(largest, tl.where(here & (scale == scale), scale, 0.0))
        top = tl.max(largest, 0)
        one = tl.where(top == float("inf"), top, tl.min(smallest, 0))
        tl.store(out_ptr + 10, tl.where(tl.max(bad, 0) > 0, float("nan"), one))
    else:
        tl.store(out_ptr + 8, -1.0)
        tl.store(out_ptr + 9, -1.0)
        tl.store(out_ptr + 10, -1.0)
    tl.store(out_ptr + 11, -1.0)


def measure(
    x: Tensor,
    used: Tensor | None,
    scale: Tensor | None,
    fmt: FloatFormat | None,
    *,
    with_histogram: bool,
) -> tuple[Tensor, Tensor | None]:
    """The vector of ``measure.on_device`` and, where wanted, ``exponents.exponents``."""
    x = x.contiguous()
    n = x.numel()
    mode, has_spread = UNCAST, False
    shape: tuple[int, int] | None = (1, 1)
    cast, factor = x, x  # stand in where there is none; the kernel does not touch them
    columns = across = 1
    limit = 0.0 if fmt is None else fmt.max_finite
    if used is not None and scale is not None and fmt is not None:
        mode, cast, factor = CAST, used.contiguous(), scale.contiguous()
        limit = cast_limit(fmt)
        columns = x.shape[-1] if x.dim() else 1
        if scale.numel() == 1:
            shape = (n // columns, columns)
        else:
            shape = block_shape(scale, x)
            across = scale.shape[-1] if scale.dim() else 1
        has_spread = shape is not None
    elif fmt is not None and fmt.name == "fp16":
        mode = FP16
    height, width = shape if shape is not None else (1, 1)
    programs = min(MOST_PROGRAMS, triton.cdiv(n, BLOCK))
    per_program = triton.cdiv(triton.cdiv(n, programs), BLOCK) * BLOCK
    parts = torch.empty((programs, 9), dtype=torch.float64, device=x.device)
    out = torch.empty(len(FIELDS), dtype=torch.float32, device=x.device)
    with _on(x.device):
        _count[(programs,)](
            x, cast, factor, parts, n, per_program, columns, height, width, across, limit,
            MODE=mode, HAS_SPREAD=has_spread, BLOCK=BLOCK,
        )  # fmt: skip
        _finish[(1,)](
            parts, factor, out, programs, n, factor.numel() if mode == CAST else 0,
            MODE=mode, HAS_OVER=has_spread or mode == FP16, ROWS=MOST_PROGRAMS, SCALES=1024,
        )  # fmt: skip
    if mode == CAST and scale is not None:
        blocks = block_amax(x, scale)
        if blocks is not None:
            out[FIELDS.index("min_block")] = blocks.amin()
    return out, exponents(x) if with_histogram else None


def _on(device: torch.device) -> Any:
    """Launches go to the tensor's device, whichever is current."""
    return torch.cuda.device(device) if device.type == "cuda" else _Nothing()


class _Nothing:
    """Where there is no device to choose (triton's interpreter)."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


assert len(FIELDS) == 12  # what _finish writes
assert NOT_MEASURED == -1.0
