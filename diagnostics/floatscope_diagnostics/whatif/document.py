"""The JSON document of a what-if: ``floatscope.what_if/1``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from floatscope_diagnostics.whatif.flags import Flag
from floatscope_diagnostics.whatif.variant import Predicted

SCHEMA = "floatscope.what_if/1"

NOT_PREDICTED = (
    "Not part of any figure: a Hadamard transform before the cast, stochastic rounding (its noise is about "
    "3 dB more, without a bias), how errors of neighbours go together, and the sums of the matrix product."
)


@dataclass(frozen=True)
class InUse:
    """What the run itself measured of the cast that it does, None where it logged nothing.

    underflow_pct, overflow_pct: of the non-zero elements.
    """

    underflow_pct: float | None = None
    overflow_pct: float | None = None
    sqnr_db: float | None = None


@dataclass(frozen=True)
class TensorWhatIf:
    """One tensor's answer.

    step: of its histogram, None for a file of values.  variant_in_use: key of the variant that the run's own
    cast is, None where its granularity or rounding was not logged.
    """

    tensor: str
    predicted: tuple[Predicted, ...]
    flags: tuple[Flag, ...] = ()
    step: int | None = None
    format_in_use: str | None = None
    variant_in_use: str | None = None
    amax: float | None = None
    scale: float | None = None
    in_use: InUse | None = None


def what_if_document(
    *,
    run: str | None,
    step: int | None,
    tensors: Sequence[TensorWhatIf],
    source: Literal["histogram", "sample"] = "histogram",
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """One JSON document without NaN or Inf: a number that cannot be said is null.

    step: the sampled step that the answer is of.  notes: sentences about the answer as a whole.
    """
    return {
        "schema": SCHEMA,
        "run": run,
        "step": step,
        "from": source,
        "notes": [*notes, NOT_PREDICTED],
        "tensors": [tensor_json(one) for one in tensors],
    }


def tensor_json(one: TensorWhatIf) -> dict[str, Any]:
    """One entry of ``tensors``."""
    used = one.in_use
    return {
        "tensor": one.tensor,
        "step": one.step,
        "format_in_use": one.format_in_use,
        "variant_in_use": one.variant_in_use,
        "flags": [{"code": flag.code, "sentence": flag.sentence} for flag in one.flags],
        "amax": _number(one.amax),
        "scale": _number(one.scale),
        "in_use": None
        if used is None
        else {
            "underflow_pct": _number(used.underflow_pct),
            "overflow_pct": _number(used.overflow_pct),
            "sqnr_db": _number(used.sqnr_db),
        },
        "variants": [_variant_json(found) for found in one.predicted],
    }


def _variant_json(found: Predicted) -> dict[str, Any]:
    variant = found.variant
    return {
        "key": variant.key,
        "label": variant.label,
        "format": variant.format,
        "granularity": variant.granularity,
        "block": variant.block,
        "block_rows": variant.block_rows,
        "bits": variant.bits,
        "underflow_pct": _number(found.underflow_pct),
        "overflow_pct": _number(found.overflow_pct),
        "sqnr_db": _number(found.sqnr_db),
        "bulk_sqnr_db": _number(found.bulk_sqnr_db),
        "measured": found.measured,
        "valid": found.valid,
        "why_not": found.why_not,
        "underflow_error_pct": _number(found.underflow_error_pct),
        "sqnr_error_db": _number(found.sqnr_error_db),
    }


def _number(value: float | None) -> float | None:
    """Six digits are more than any prediction has."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.6g}")
