"""What another scaling would do to a tensor of the run, from its last histogram; and which one is enough."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from floatscope_diagnostics.advisor.evidence import TensorEvidence
from floatscope_diagnostics.advisor.limits import candidate, ideal_sqnr_db
from floatscope_diagnostics.whatif.grids import variants
from floatscope_diagnostics.whatif.predict import predict
from floatscope_diagnostics.whatif.spread import Spread
from floatscope_diagnostics.whatif.stored import spread_from
from floatscope_diagnostics.whatif.variant import Predicted, Variant

COARSEST_FIRST = ("delayed", "current", "rowwise", "block", "mxfp8", "bf16")
"""Recipes by the number of elements that share a scale; a delayed scale counts as coarser than a current."""

_KEYS = {
    ("current", "input"): "e4m3_tensor",
    ("current", "weight"): "e4m3_tensor",
    ("current", "grad_output"): "e5m2_tensor",
    ("rowwise", "input"): "e4m3_row_pow2",
    ("rowwise", "weight"): "e4m3_row_pow2",
    ("rowwise", "grad_output"): "e4m3_row_pow2",
    ("block", "input"): "e4m3_block128",
    ("block", "weight"): "e4m3_block128x128",
    ("block", "grad_output"): "e4m3_block128",
    ("mxfp8", "input"): "mxfp8_e4m3_up",
    ("mxfp8", "weight"): "mxfp8_e4m3_up",
    ("mxfp8", "grad_output"): "mxfp8_e4m3_up",
}
"""Format and scale of each operand by recipe: defaults of Transformer Engine (HYBRID for one scale per
tensor, E4M3 for blocks) and of torchao (rowwise: E4M3 everywhere, scales rounded down to a power of two)."""

CLIPPED_PCT = 0.1  # share of elements from which on the SQNR is that of the clipping


@dataclass(frozen=True)
class Outlook:
    """What a recipe would do to the operands of a layer.

    recipe: short name.  good: whether every operand is within the limits of a candidate.  underflow_pct: the
    largest of the operands.  sqnr_db: the smallest.  why: what speaks against it, empty if nothing does.
    unknown: nothing was found against it, but an operand could not be predicted; why says which.
    """

    recipe: str
    good: bool
    underflow_pct: float | None
    sqnr_db: float | None
    why: str = ""
    unknown: bool = False

    def figures(self) -> str:
        """ "underflow 0.02 %, SQNR 31.2 dB"; what is not known is left out."""
        parts = []
        if self.underflow_pct is not None:
            parts.append(f"underflow {self.underflow_pct:.2f} %")
        if self.sqnr_db is not None:
            parts.append(f"SQNR {self.sqnr_db:.1f} dB")
        return ", ".join(parts)


def finer_than(recipe: str, allowed: Sequence[str]) -> tuple[str, ...]:
    """Of the allowed recipes those with finer scales than this one, coarsest first; bf16 not among them."""
    order = {name: k for k, name in enumerate(COARSEST_FIRST)}
    least = order.get(recipe, -1 if recipe == "unknown" else len(order))
    return tuple(r for r in COARSEST_FIRST if r in allowed and r != "bf16" and order[r] > least)


def outlook(tensors: Sequence[TensorEvidence], recipe: str) -> Outlook:
    """What a recipe would do to these operands of one layer."""
    under: list[float] = []
    sqnr: list[float] = []
    unknown = ""
    for tensor in tensors:
        key = _KEYS.get((recipe, tensor.role))
        found = None if key is None else prediction(tensor, key)
        if found is None and is_all_zero(tensor):
            continue
        if found is None:
            unknown = unknown or f"{tensor.name} has no histogram"
            continue
        if not found.valid or found.underflow_pct is None:
            unknown = unknown or f"{tensor.name}: {found.why_not or 'cannot be predicted'}"
            continue
        under.append(found.underflow_pct)
        if found.bulk_sqnr_db is not None or found.sqnr_db is not None:
            sqnr.append(_least(found.sqnr_db, found.bulk_sqnr_db))
        ideal = ideal_sqnr_db(found.variant.format) or math.inf
        short = ideal - sqnr[-1] if sqnr else math.inf
        if found.underflow_pct >= candidate("underflow_pct"):
            why = f"{tensor.name} would still lose {found.underflow_pct:.1f} % of its values to zero"
            return Outlook(recipe, False, max(under), min(sqnr, default=None), why)
        if short > candidate("sqnr_within_db"):
            why = f"{tensor.name} would stay {short:.1f} dB below what the format can do"
            return Outlook(recipe, False, max(under), min(sqnr, default=None), why)
    if unknown:
        return Outlook(recipe, False, None, None, unknown, unknown=True)
    return Outlook(recipe, bool(tensors), max(under, default=None), min(sqnr, default=None))


def is_all_zero(tensor: TensorEvidence) -> bool:
    """Whether the tensor held only zeros of late: it has statistics, but no ratio of signal and noise."""
    seen = np.flatnonzero(np.isfinite(tensor.underflow_pct))[-5:]
    return (
        len(seen) > 0 and not np.isfinite(tensor.sqnr_db[seen]).any() and not tensor.underflow_pct[seen].any()
    )


def prediction(tensor: TensorEvidence, key: str) -> Predicted | None:
    """One variant on the tensor's last histogram; None without one."""
    spread = spread_of_evidence(tensor)
    variant = _variant(key)
    if spread is None or variant is None:
        return None
    return predict(spread, (variant,))[0]


def cast_loses_more_db(tensor: TensorEvidence) -> float | None:
    """By how much the measured SQNR lies below what the format must lose under the scale that was used, dB.

    Well above 0 the cast itself is worse than rounding to nearest, and no scale mends that. None where the
    scale in use is not known or not one per tensor, and where values are clipped: what clipping costs is
    predicted to 3.5 dB only, and a scale does mend it.
    """
    if tensor.format not in ("e4m3", "e5m2") or tensor.histogram is None:
        return None
    measured = tensor.histogram.stats.get("sqnr_db")
    clipped = tensor.histogram.stats.get("overflow_pct")
    if measured is None or not math.isfinite(measured) or (clipped or 0.0) > CLIPPED_PCT:
        return None
    found = prediction(tensor, f"{tensor.format}_tensor_as_used")
    if found is None or not found.valid or found.sqnr_db is None:
        return None
    return found.sqnr_db - measured


def bulk_sqnr_db(tensor: TensorEvidence) -> float | None:
    """SQNR in use without the few elements that hold the power, from the histogram; None if not known."""
    key = f"{tensor.format}_tensor_as_used" if tensor.format in ("e4m3", "e5m2") else ""
    found = prediction(tensor, key) if key else None
    return None if found is None or not found.valid else found.bulk_sqnr_db


def spread_of_evidence(tensor: TensorEvidence) -> Spread | None:
    """The tensor's last histogram as the predictor wants it; None without one."""
    histogram = tensor.histogram
    if histogram is None or not any(histogram.counts):
        return None
    facts = {**tensor.facts, "format": tensor.format}
    return spread_from(histogram.counts, histogram.stats, facts, step=histogram.step)


def _variant(key: str) -> Variant | None:
    return next((variant for variant in variants() if variant.key == key), None)


def _least(sqnr: float | None, bulk: float | None) -> float:
    return min(value for value in (sqnr, bulk) if value is not None)
