"""True casts of stored values in every format: what a prediction is checked against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.whatif.flags import CONCENTRATED, FEWEST, Flag
from floatscope_diagnostics.whatif.grids import Grid, grids, quantize, variants
from floatscope_diagnostics.whatif.scales import scales
from floatscope_diagnostics.whatif.tensor_model import BULK_WITHOUT, CAST_LIMIT
from floatscope_diagnostics.whatif.variant import Predicted, Variant

Matrix = NDArray[np.float32]


@dataclass(frozen=True)
class Measured:
    """One Predicted a variant, made by casting, and what to know of the values."""

    found: tuple[Predicted, ...]
    flags: tuple[Flag, ...]
    amax: float | None


def measure(
    values: NDArray[np.floating],
    wanted: Sequence[Variant] | None = None,
    row_length: int | None = None,
    *,
    whole_amax: float | None = None,
) -> tuple[Predicted, ...]:
    """Casts values in each variant, in float32 as the frameworks' kernels do.

    values: any shape; rows are along the last axis, or of ``row_length`` elements.  Non-finite values are
    left out (taken as zero).  whole_amax: of the tensor that the values are a part of, which gives its one
    scale; by default the values' own.  "given" scales cannot be known from values.

    Raises ValueError if rows of ``row_length`` do not cover the values.
    """
    return measured(values, wanted, row_length, whole_amax=whole_amax).found


def measured(
    values: NDArray[np.floating],
    wanted: Sequence[Variant] | None = None,
    row_length: int | None = None,
    *,
    whole_amax: float | None = None,
) -> Measured:
    """As ``measure``, with flags."""
    asked = tuple(wanted) if wanted is not None else variants()
    x, flags = _matrix(values, row_length)
    size = np.abs(x)
    amax = float(size.max()) if x.size else 0.0
    if amax == 0.0:
        why = "every value is zero" if not flags else "no value but zeros is finite"
        found = tuple(Predicted(v, None, None, None, measured=True, valid=False, why_not=why) for v in asked)
        return Measured(found, (*flags, Flag("all_zero", f"{why.capitalize()}.")), None)
    amax = max(amax, whole_amax or 0.0)
    sample = _Sample(x, size, amax)
    if sample.count < FEWEST:
        flags.append(Flag("too_few", f"Only {sample.count:,} non-zero values: figures vary by chance."))
    if sample.share > CONCENTRATED:
        flags.append(
            Flag(
                "power_concentrated",
                f"The {BULK_WITHOUT} largest elements hold {100 * sample.share:.0f} % of the power: go by "
                "underflow and by the SQNR of the bulk.",
            )
        )
    return Measured(tuple(sample.cast(variant) for variant in asked), tuple(flags), amax)


def _matrix(values: NDArray[np.floating], row_length: int | None) -> tuple[Matrix, list[Flag]]:
    length = row_length if row_length is not None else (values.shape[-1] if values.ndim else 1)
    if length < 1 or values.size % length:
        raise ValueError(f"rows of {length} elements do not cover {values.size:,} values")
    with np.errstate(over="ignore"):
        x = np.ascontiguousarray(values, np.float32).reshape(-1, length)
    bad = x.size - int(np.count_nonzero(np.isfinite(x)))
    if not bad:
        return x, []
    flag = Flag("not_finite", f"{bad:,} values are NaN, infinite or above float32's range: left out.")
    return np.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0), [flag]


class _Sample:
    """A matrix of finite values that are not all zero."""

    def __init__(self, x: Matrix, size: Matrix, amax: float) -> None:
        self._x, self._size, self._amax = x, size, amax
        self.count = int(np.count_nonzero(x))
        self._unit = np.float32(1.0 / max(amax, 1.2e-38))
        flat = size.ravel()
        few = min(BULK_WITHOUT, flat.size)
        self._top = np.argpartition(flat, flat.size - few)[flat.size - few :]
        self._power, self._bulk_power = self._sums(x * self._unit)
        self.share = 1.0 - self._bulk_power / self._power

    def cast(self, variant: Variant) -> Predicted:
        if variant.scale == "given":
            why = "values alone do not say which scale was used"
            return Predicted(variant, None, None, None, measured=True, valid=False, why_not=why)
        grid = grids()[variant.format]
        scale = self._scales(variant, grid)
        with np.errstate(over="ignore", under="ignore"):
            scaled = self._x * scale
            value = quantize(scaled, grid)
            kept = value if variant.scale == "none" else value / scale
        under = self.count - int(np.count_nonzero(value))
        over = int(np.count_nonzero(np.abs(scaled) > grid.max * CAST_LIMIT))
        noise, bulk_noise = self._sums((self._x - kept) * self._unit)
        return Predicted(
            variant=variant,
            underflow_pct=100.0 * under / self.count,
            overflow_pct=100.0 * over / self.count,
            sqnr_db=_db(self._power, noise),
            bulk_sqnr_db=_db(self._bulk_power, bulk_noise),
            measured=True,
        )

    def _scales(self, variant: Variant, grid: Grid) -> Matrix:
        """Of each element, or one."""
        if variant.granularity in ("none", "tensor"):
            one = scales(np.array([self._amax]), grid, variant.scale, self._amax)
            return one.astype(np.float32).reshape(1, 1)
        rows, columns = self._x.shape
        high = variant.block_rows
        wide = columns if variant.granularity == "row" else (variant.block or columns) // high
        down, across = -(-rows // high), -(-columns // wide)
        if down * high == rows and across * wide == columns:
            padded = self._size
        else:
            padded = np.zeros((down * high, across * wide), np.float32)
            padded[:rows, :columns] = self._size
        amax = padded.reshape(down, high, across, wide).max(axis=(1, 3)).astype(np.float64)
        amax[amax == 0] = self._amax  # of nothing but zeros: any scale will do
        of_block = scales(amax, grid, variant.scale, self._amax).astype(np.float32)
        if across > 1 or high > 1:
            of_block = np.repeat(np.repeat(of_block, high, axis=0)[:rows], wide, axis=1)[:, :columns]
        return of_block

    def _sums(self, x: Matrix) -> tuple[float, float]:
        """Sum of squares of all and of the bulk."""
        flat = x.ravel()
        square = flat * flat
        whole = float(square.sum(dtype=np.float64))
        square[self._top] = 0.0
        return whole, float(square.sum(dtype=np.float64))


def _db(power: float, noise: float) -> float | None:
    return float(10.0 * np.log10(power / noise)) if power > 0 and noise > 0 else None
