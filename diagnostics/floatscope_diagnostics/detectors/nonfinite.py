"""Invariant: no tensor, gradient, update or loss holds NaN or Inf. No threshold, every step.

Signals: ``nonfinite_forward`` (inputs, outputs), ``nonfinite_weight`` (weight values), ``nonfinite_grad``
(gradients of activations), ``nonfinite_weight_grad`` (a weight's gradient norm or update, or a grad_weight
tensor). In a step that a dynamic loss scaler skipped, bad gradients over a finite forward are no sign: that
is finds its scale.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.columns import ROLE_CODES
from floatscope_diagnostics.detectors.row import StatRow, skipped_by_scaler

_FORWARD = (ROLE_CODES["input"], ROLE_CODES["output"])
_GRAD = (ROLE_CODES["grad_output"], ROLE_CODES["grad_input"])


def detect_nonfinite(row: StatRow) -> NDArray[np.bool_]:
    """Emits the four signals for one row; returns the tensors (S,) that hold a non-finite value or update."""
    nan: NDArray[np.bool_] = row.frame.nan[row.d]
    inf: NDArray[np.bool_] = row.frame.inf[row.d]
    if not row.frame.broken[row.d]:
        return nan
    bad: NDArray[np.bool_] = nan | inf
    bad_grad, bad_update = row.frame.bad_grad[row.d], row.frame.bad_update[row.d]
    touched: NDArray[np.bool_] = bad | bad_grad | bad_update
    role = row.columns.role
    forward = bad & np.isin(role, (*_FORWARD, -1))
    weight = bad & (role == ROLE_CODES["weight"])
    grad = bad & np.isin(role, _GRAD)
    weight_grad = (bad & (role == ROLE_CODES["grad_weight"])) | bad_grad
    if (
        not weight_grad.any()
    ):  # clipping by a global norm spreads one bad gradient to every update: name the gradient
        weight_grad = bad_update
    if skipped_by_scaler(row.scalars) and not forward.any() and not weight.any():
        return touched
    with np.errstate(over="ignore"):  # counts beyond float32 are no counts
        counts = np.nan_to_num(row.stat("nan_count")) + np.nan_to_num(row.stat("inf_count"))
    for signal, mask in (
        ("nonfinite_forward", forward),
        ("nonfinite_weight", weight),
        ("nonfinite_grad", grad),
        ("nonfinite_weight_grad", weight_grad),
    ):
        if mask.any():
            row.hit(
                signal,
                mask=mask,
                values=counts,
                expected=0.0,
                extra=_onset_extra(row, signal, mask, inf, counts),
            )
    return touched


def _onset_extra(
    row: StatRow,
    signal: str,
    mask: NDArray[np.bool_],
    inf: NDArray[np.bool_],
    counts: NDArray[np.float64],
) -> dict[str, float] | None:
    """At the first step and of the first tensor: Inf or NaN, how many values, how saturated; tensors."""
    if row.log.is_open(signal, row=row.index):
        return None
    first = row.columns.first(mask)
    if first is None:
        return None
    sat = float(row.frame.sat[row.d][first])
    scale = row.stat("scale")[first]
    return {
        "inf": float(inf[first]),
        "count": float(counts[first]),
        "sat": sat,
        "scale": float(scale),
        "first_count": float(mask.sum()),
    }
