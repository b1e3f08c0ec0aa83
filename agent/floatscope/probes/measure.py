"""What is measured of one tensor before its cast. Definitions: see ``floatscope.protocol.names`` and below.

Two ways to the same numbers. ``on_device`` runs some seventy small kernels and never looks at a value, so
that nothing waits. ``on_cpu`` looks first (largest value, then only what is needed); a healthy tensor needs
five passes over its values.

A measurement is a vector of ``FIELDS``. Sums of several passes add up, the largest and smallest combine, and
``statistics`` turns them into the protocol's statistics.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from floatscope.probes.blocks import block_amax, spread_scale
from floatscope.probes.host_norms import host_norm
from floatscope.protocol.formats import FloatFormat

FIELDS = (
    "n", "amax", "norm", "nan", "inf", "zero", "over", "under", "signal", "noise", "scale", "min_block",
)  # fmt: skip
"""amax: largest absolute value; NaN is dropped and infinity kept, as in Transformer Engine's cast kernels.

norm: L2 norm of the finite elements. over: abs(x) * scale above ``cast_limit``. under: non-zero before
the cast, zero after. signal, noise: L2 norms of x and of x minus what the GEMM uses, over elements where both
are finite. scale: the one used; of several blocks the smallest, which goes with amax. min_block: smallest
amax of a block. A field that was not measured is -1.
"""

NOT_MEASURED = -1.0
_SAFE = (1e-12, 1e12)  # squares of values in here neither vanish nor overflow in float32, also when summed


def cast_limit(fmt: FloatFormat) -> float:
    """Above it a scaled value counts as overflow.

    The format's maximum, and room for the rounding of a scale: one made from this very tensor maps amax onto
    the maximum, give or take the last bits of float32.
    """
    return fmt.max_finite * (1.0 + 2.0**-20)


def on_cpu(x: Tensor, used: Tensor | None, scale: Tensor | None, fmt: FloatFormat | None) -> list[float]:
    """Measures a host tensor.

    x: values before the cast.  used: what the GEMM uses instead, same shape, or None if nothing is cast.
    scale: shape () or one per block, None where the format has none.  fmt: the format of the cast; it also
    gives what fits into fp16.
    """
    n = x.numel()
    largest, finite_amax, nan, inf, finite = _extremes(x)
    unit = _unit(finite_amax)
    norm = _norm(finite if unit == 1.0 else finite.float() * unit) / unit
    zero = n - int(torch.count_nonzero(x))
    found = [float(n), largest, norm, float(nan), float(inf), float(zero)]
    if used is None or fmt is None or scale is None:
        return found + _unscaled_on_cpu(x, largest, zero, fmt) + [NOT_MEASURED, NOT_MEASURED]
    spread = spread_scale(scale, x)
    if spread is None:
        over = NOT_MEASURED
    else:
        worst_scale = float(spread) if spread.numel() == 1 else float(spread.max())
        might = largest * worst_scale > cast_limit(fmt) or not math.isfinite(worst_scale)
        over = float(torch.count_nonzero(x.abs().float() * spread > cast_limit(fmt))) if might else 0.0
    is_scale_sane = bool(torch.isfinite(scale).all())
    if is_scale_sane:  # then the cast leaves zeros zero, and counting both sides is enough
        under = float(max(n - zero - int(torch.count_nonzero(used)), 0))
    else:
        under = float(torch.count_nonzero((x != 0) & (used == 0)))
    noise = _norm(_difference(x, used, unit)) if nan + inf == 0 else math.nan
    if math.isfinite(noise):
        signal, noise = norm, noise / unit
    else:
        both = torch.isfinite(x) & torch.isfinite(used)
        clean = torch.where(both, x, 0)
        unit = _unit(_extremes(clean)[1])
        signal = _norm(clean.float() * unit) / unit
        noise = _norm(_difference(clean, torch.where(both, used, 0), unit)) / unit
    blocks = block_amax(x, scale)
    min_block = NOT_MEASURED if blocks is None else float(blocks.min())
    return [*found, over, under, signal, noise, _one_scale_on_cpu(scale), min_block]


def _unit(amax: float) -> float:
    """A factor that brings the values to where their squares fit into float32."""
    return 1.0 if _SAFE[0] < amax < _SAFE[1] or amax == 0 else 1.0 / min(max(amax, 1e-38), 1e38)


def _extremes(x: Tensor) -> tuple[float, float, int, int, Tensor]:
    """amax, amax of the finite elements, counts of NaN and infinity, and x with those at 0."""
    low, high = (float(v) for v in torch.aminmax(x))  # one pass, and it propagates NaN
    amax = max(-low, high)
    if math.isfinite(amax):
        return amax, amax, 0, 0, x
    nan = int(torch.count_nonzero(torch.isnan(x)))
    inf = int(torch.count_nonzero(torch.isinf(x)))
    finite = torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)
    low, high = (float(v) for v in torch.aminmax(finite))
    finite_amax = max(-low, high)
    amax = math.inf if inf else finite_amax if nan < x.numel() else math.nan
    return amax, finite_amax, nan, inf, finite


def _unscaled_on_cpu(x: Tensor, largest: float, zero: int, fmt: FloatFormat | None) -> list[float]:
    """over, under, signal, noise of a tensor that is stored in fp16; nothing is lost in the wider formats."""
    if fmt is None or fmt.name != "fp16":
        return [NOT_MEASURED] * 4
    over = float(torch.count_nonzero(x.abs() > fmt.max_finite)) if largest > fmt.max_finite else 0.0
    if x.dtype == torch.float16:
        return [over, NOT_MEASURED, NOT_MEASURED, NOT_MEASURED]
    under = x.numel() - zero - int(torch.count_nonzero(x.to(torch.float16)))
    return [over, float(max(under, 0)), NOT_MEASURED, NOT_MEASURED]


def _norm(x: Tensor) -> float:
    return host_norm(x) if x.numel() else 0.0


def _difference(x: Tensor, used: Tensor, unit: float) -> Tensor:
    if unit == 1.0:
        return x - used
    return x.float() * unit - used.float() * unit


def _one_scale_on_cpu(scale: Tensor) -> float:
    """The scale that stands for all blocks: the smallest; one that is not finite comes first."""
    largest = float(scale.max())
    return float(scale.min()) if math.isfinite(largest) else largest


def on_device(x: Tensor, used: Tensor | None, scale: Tensor | None, fmt: FloatFormat | None) -> Tensor:
    """The same as ``on_cpu`` as a float32 vector on the tensor's device, without looking at any value.

    Norms are divided by the root of n, so that they fit; ``from_device`` undoes it.
    """
    x = x.float()
    n = x.numel()
    is_finite = torch.isfinite(x)
    finite = torch.where(is_finite, x, 0)
    size = finite.abs()
    finite_amax = size.amax()
    unit = 1.0 / torch.where(finite_amax > 0, finite_amax, 1.0).clamp(1e-38, 1e38)
    nan = torch.count_nonzero(torch.isnan(x))
    inf = torch.count_nonzero(torch.isinf(x))
    amax = torch.where(inf > 0, math.inf, torch.where(nan == n, math.nan, finite_amax))
    spread_over = n**0.5
    root = torch.linalg.vector_norm(finite * unit) / spread_over / unit
    absent = torch.full_like(amax, NOT_MEASURED)
    zero = n - torch.count_nonzero(x)
    over, under, signal, noise, one_scale, min_block = (absent,) * 6
    if used is not None and fmt is not None and scale is not None:
        spread = spread_scale(scale, x)
        if spread is not None:
            over = torch.count_nonzero(x.abs() * spread > cast_limit(fmt))
        under = torch.count_nonzero((x != 0) & (used == 0))
        both = is_finite & torch.isfinite(used)
        clean = torch.where(both, x, 0)
        clean_amax = clean.abs().amax()
        unit = 1.0 / torch.where(clean_amax > 0, clean_amax, 1.0).clamp(1e-38, 1e38)
        clean = clean * unit
        kept = torch.where(both, used.float(), 0) * unit
        signal = torch.linalg.vector_norm(clean) / spread_over / unit
        noise = torch.linalg.vector_norm(clean - kept) / spread_over / unit
        largest = scale.amax()
        one_scale = torch.where(torch.isfinite(largest), scale.amin(), largest)
        blocks = block_amax(x, scale)
        min_block = absent if blocks is None else blocks.amin()
    elif fmt is not None and fmt.name == "fp16":
        over = torch.count_nonzero(x.abs() > fmt.max_finite)
        under = torch.count_nonzero((x != 0) & (x.to(torch.float16) == 0))
    count = torch.full_like(amax, float(n))
    found = (count, amax, root, nan, inf, zero, over, under, signal, noise, one_scale, min_block)
    return torch.stack([value.reshape(()).float() for value in found])


def from_device(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Measurements, [calls, FIELDS], from what ``on_device`` gave; a norm not measured stays -1."""
    found = vectors.reshape(-1, len(FIELDS)).copy()
    for name in ("norm", "signal", "noise"):
        column = found[:, FIELDS.index(name)]
        found[:, FIELDS.index(name)] = np.where(column < 0, column, column * np.sqrt(found[:, 0]))
    return found
