"""The number formats' grids, and rounding onto them: to nearest even, saturating.

Checked bit by bit against the casts of torch in the tests.  Nothing here knows of scales.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.whatif.variant import Variant

_Float = TypeVar("_Float", np.float32, np.float64)

_EXPONENT = {np.dtype(np.float64): (np.int64, 0x7FF0_0000_0000_0000),
             np.dtype(np.float32): (np.int32, 0x7F80_0000)}  # fmt: skip
"""Integers of the same size, and the bits of the exponent: alone they are the power of two below a value."""


@dataclass(frozen=True)
class Grid:
    """The values of a format.

    max: largest finite one.  step: distance of integers' values; of a floating-point format None, with
    mantissa_bits and min_exponent, the exponent of its smallest normal value.
    """

    max: float
    mantissa_bits: int = 0
    min_exponent: int = 0
    step: float | None = None

    @property
    def smallest(self) -> float:
        """Smallest value above zero."""
        return self.step if self.step is not None else 2.0 ** (self.min_exponent - self.mantissa_bits)


def quantize(x: NDArray[_Float], grid: Grid) -> NDArray[_Float]:
    """The values of the grid nearest to x, float32 or float64 as given.

    Ties go to the even one, what is beyond the largest becomes the largest, also infinity; NaN stays NaN.
    """
    if grid.step is None:
        whole, mask = _EXPONENT[x.dtype]
        step = (x.view(whole) & whole(mask)).view(x.dtype)  # 2 to the floor of log2 abs(x)
        np.maximum(step, x.dtype.type(2.0**grid.min_exponent), out=step)
        step *= x.dtype.type(2.0**-grid.mantissa_bits)
    else:
        step = np.full((), grid.step, x.dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        out: NDArray[_Float] = np.rint(x / step) * step
    if np.isinf(x).any():
        out = np.where(np.isinf(x), x, out)
    return np.clip(out, -grid.max, grid.max)


@cache
def grids() -> Mapping[str, Grid]:
    """Grid by name, from ``formats.json``."""
    known = {field.name for field in fields(Grid)}
    return MappingProxyType(
        {
            name: Grid(**{key: value for key, value in entry.items() if key in known})
            for name, entry in _table()["grids"].items()
        }
    )


@cache
def variants() -> tuple[Variant, ...]:
    """Every format with a rule for its scales that can be asked about, from ``formats.json``."""
    known = {field.name for field in fields(Variant)}
    return tuple(
        Variant(**{key: value for key, value in entry.items() if key in known})
        for entry in _table()["variants"]
    )


def variant(key: str) -> Variant:
    """The variant of this key. Raises ValueError that names the ones there are."""
    for known in variants():
        if known.key == key:
            return known
    raise ValueError(f"no format {key!r}; there are: {', '.join(v.key for v in variants())}")


@cache
def _table() -> dict[str, Any]:
    text = files("floatscope_diagnostics.whatif").joinpath("formats.json").read_text("utf-8")
    table: dict[str, Any] = json.loads(text)
    return table
