"""Invariants of the run's scalars: finite loss and gradient norm, labels present, ids inside the vocabulary.
No threshold.

Signals: ``loss_nonfinite``, ``grad_norm_nonfinite``, ``no_labels`` (label_tokens, or the smallest
micro-batch, is 0), ``id_out_of_range``.
"""

from __future__ import annotations

import math

from floatscope_diagnostics.detectors.row import ScalarRow, skipped_by_scaler

LABEL_SCALARS = ("label_tokens", "label_tokens_min_microbatch")
ID_COUNT = "input_ids_out_of_range"
ID_MAX, ID_MIN = "input_id_max", "input_id_min"


def detect_run_invariants(row: ScalarRow) -> None:
    """Emits the invariants of one step's scalars."""
    for name, signal in (("loss", "loss_nonfinite"), ("grad_norm", "grad_norm_nonfinite")):
        if name == "grad_norm" and skipped_by_scaler(row.scalars):
            continue
        value = row.scalars.get(name)
        if value is not None and not math.isfinite(value):
            _hit(row, signal, value, {"inf": float(math.isinf(value))})
    for name in LABEL_SCALARS:
        if row.scalars.get(name) == 0.0:
            _hit(row, "no_labels", 0.0, {"smallest_microbatch": float(name == LABEL_SCALARS[1])})
            break
    _ids(row)


def _ids(row: ScalarRow) -> None:
    count = row.scalars.get(ID_COUNT, 0.0)
    largest = row.scalars.get(ID_MAX)
    smallest = row.scalars.get(ID_MIN)
    over = row.vocab_size is not None and largest is not None and largest >= row.vocab_size
    if count > 0 or over or (smallest is not None and smallest < 0):
        extra = {"count": count}
        if largest is not None:
            extra["largest"] = largest
        if smallest is not None:
            extra["smallest"] = smallest
        _hit(row, "id_out_of_range", max(count, 1.0), extra)


def _hit(row: ScalarRow, signal: str, value: float, extra: dict[str, float]) -> None:
    row.hit(signal, value, extra=None if row.log.is_open(signal) else extra)
