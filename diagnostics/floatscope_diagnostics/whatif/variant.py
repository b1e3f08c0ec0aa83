"""The formats and scales that a tensor can be asked about, and the answer for one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Granularity = Literal["none", "tensor", "row", "block"]
ScaleKind = Literal["none", "fp32", "given", "pow2", "ocp", "nv"]


@dataclass(frozen=True)
class Variant:
    """A number format with a rule for its scales.

    key: stable ("e4m3_tensor", "mxfp8_e4m3_up", "nvfp4").  format: of ``grids``.  block: elements that share
    a scale, None for a tensor's one or a row's.  scale: how it is made: "fp32" is max/amax, "pow2" the same
    rounded down to a power of two, "ocp" the floor rule of OCP MX 1.0, "nv" NVFP4's E4M3 under one FP32.
    bits: of a value with its share of the scales.
    """

    key: str
    label: str
    format: str
    granularity: Granularity
    scale: ScaleKind
    block: int | None = None
    bits: float = 8.0
    block_rows: int = 1


@dataclass(frozen=True)
class Predicted:
    """What a variant does to a tensor. None: cannot be said; ``why_not`` says why.

    underflow_pct, overflow_pct: of the non-zero elements.  sqnr_db: of all; bulk_sqnr_db: without the few
    elements that hold most of the power, where they make ``sqnr_db`` meaningless.  measured: from values, not
    predicted from a histogram.  underflow_error_pct, sqnr_error_db: largest error of such a prediction in
    the benchmark, absent where the data are outside what was measured; data_class says of which kind of data.
    sqnr_chance_db: standard deviation of the SQNR over the places of the values in their bins; twice it is
    part of sqnr_error_db.
    """

    variant: Variant
    underflow_pct: float | None
    overflow_pct: float | None
    sqnr_db: float | None
    bulk_sqnr_db: float | None = None
    measured: bool = False
    valid: bool = True
    why_not: str = ""
    underflow_error_pct: float | None = None
    sqnr_error_db: float | None = None
    sqnr_chance_db: float | None = None
    data_class: str = ""
