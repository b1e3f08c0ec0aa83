"""The multiplying scale of a block from its largest value, by each rule in use."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.whatif.grids import Grid, grids, quantize
from floatscope_diagnostics.whatif.variant import ScaleKind

Floats = NDArray[np.float64]

E8M0_LIMIT = 127
"""Exponents of E8M0 scales reach from -127 to 127 (OCP MX 1.0, 5.4.1)."""


def scales(amax: Floats, grid: Grid, kind: ScaleKind, whole_amax: float) -> Floats:
    """Scales of blocks.

    amax: above 0, of the blocks.  whole_amax: of the tensor, which NVFP4's second scale is made of.

    "fp32": max/amax.  "pow2": that rounded down to a power of two; so the stored 2**ceil(log2(amax/max)) of
    MX is rounded up.  "ocp": 2**(floor(log2 max) - floor(log2 amax)), OCP MX 1.0, 6.3.  "nv": E4M3 of
    amax/6 over the FP32 scale whole_amax/(448*6), at least its smallest value (Transformer Engine, nvfp4).
    """
    if kind == "none":
        return np.ones_like(amax)
    if kind == "fp32":
        return np.minimum(grid.max / amax, float(np.finfo(np.float32).max))
    if kind == "pow2":
        return _power(_floor_log2(grid.max / amax))
    if kind == "ocp":
        return _power(_floor_log2(np.full_like(amax, grid.max)) - _floor_log2(amax))
    if kind == "nv":
        e4m3 = grids()["e4m3"]
        first = e4m3.max * grid.max / whole_amax
        return first / np.maximum(quantize(amax / grid.max * first, e4m3), e4m3.smallest)
    raise ValueError(f"no rule for a scale of kind {kind!r}")


def _floor_log2(x: Floats) -> Floats:
    return np.frexp(x)[1].astype(np.float64) - 1.0


def _power(exponent: Floats) -> Floats:
    return np.exp2(np.clip(exponent, -E8M0_LIMIT, E8M0_LIMIT))
