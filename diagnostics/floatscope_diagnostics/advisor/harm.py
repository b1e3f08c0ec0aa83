"""How much damage the casts of a layer do, as one number that layers are ranked by.

The relative error of a GEMM is about the sum of its operands' noise-to-signal ratios, and every operand goes
into two of a layer's three GEMMs. The harm of a layer is therefore the sum over its operands of the
noise-to-signal ratio beyond what the format has on values that suit it, plus the shares of elements that
vanish or clip beyond what healthy runs show; each operand counts for at most 1. A layer without fault has
about 0. It is a ranking, not a loss: how well it foretells the part of a gap that closes is measured in
benchmarks/advisor.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.advisor.evidence import Evidence, TensorEvidence
from floatscope_diagnostics.advisor.limits import ideal_sqnr_db
from floatscope_diagnostics.advisor.other_scalings import bulk_sqnr_db
from floatscope_diagnostics.advisor.problems import sqnr_loss_db, steady_mean

HEALTHY_UNDERFLOW_PCT = 0.5
"""Largest mean underflow of an operand in the healthy runs of benchmarks/advisor (fc2's input, 0.4 %)."""
WARM_UP = 0.25  # share of the run's rows left out at its beginning


def harm_by_layer(evidence: Evidence) -> dict[str, float]:
    """Harm of every layer with casts, 0 or more; no unit."""
    out = dict.fromkeys(evidence.layers, 0.0)
    skip = int(WARM_UP * len(evidence.steps))
    for tensor in evidence.tensors:
        out[tensor.layer] += _harm(tensor, skip)
    return out


def _harm(tensor: TensorEvidence, skip: int) -> float:
    under = max(_steady(tensor.underflow_pct[skip:]) - HEALTHY_UNDERFLOW_PCT, 0.0) / 100.0
    over = max(_steady(tensor.overflow_pct[skip:]), 0.0) / 100.0
    ideal = ideal_sqnr_db(tensor.format)
    noise = 0.0
    if ideal is not None:
        own = _ratio(ideal - _steady(sqnr_loss_db(tensor)[skip:]))
        bulk = bulk_sqnr_db(tensor)
        if bulk is not None:
            own = max(own, _ratio(bulk))
        noise = max(own - _ratio(ideal), 0.0)
    return min(noise + under + over, 1.0)


def _ratio(sqnr_db: float) -> float:
    return float(10.0 ** (-sqnr_db / 10.0))


def _steady(values: NDArray[np.float64]) -> float:
    """``steady_mean``, 0 where nothing is known."""
    mean = steady_mean(values)
    return mean if math.isfinite(mean) else 0.0
