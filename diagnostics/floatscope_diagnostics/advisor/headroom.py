"""Whether a tensor's scale is far from the one that its recipe implies, from amax and scale alone.

Headroom is log2(largest value of the format / (amax * scale)), in bits; below 0 values clip. A recipe with
one scale per tensor explains some of it: the margin, and with delayed scaling a larger amax in the history.
What is left beyond that says how far off the scale is, without a histogram.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.formats import FORMATS
from floatscope_diagnostics.advisor.advice import Problem
from floatscope_diagnostics.advisor.evidence import Evidence, TensorEvidence
from floatscope_diagnostics.advisor.limits import clipped_bits, free_headroom_bits
from floatscope_diagnostics.advisor.problems import MIN_ROWS, WINDOW_STEPS

ONE_SCALE = ("delayed", "current")
DEFAULT_HISTORY = 1024
"""``amax_history_len`` of Transformer Engine's DelayedScaling, for runs that do not name theirs. A history
that is taken too long explains more headroom, never less."""
MOST_HISTORY = 1 << 20
MOST_MARGIN = 64.0


@dataclass(frozen=True)
class WrongScale:
    """bits: headroom, median of the steps with the problem.  explained: by margin and history, bits.  rows:
    logged steps that this rests on.
    """

    bits: float
    explained: float
    rows: int

    def sentence(self, tensor: TensorEvidence) -> str:
        """What the scale does to the tensor, and what the recipe would."""
        most = FORMATS[tensor.format].max_finite
        if self.bits < 0:
            return (
                f"amax * scale of {tensor.name} is 2^{-self.bits:.0f} times the largest value of the format "
                f"({most:g}; median of {self.rows} logged steps); {tensor.recipe} scaling keeps it below that"
            )
        return (
            f"the scale leaves {self.bits:.0f} bits of headroom above amax in {tensor.name} (median of "
            f"{self.rows} logged steps); margin and history of {tensor.recipe} scaling explain "
            f"{self.explained:.0f}, and up to {free_headroom_bits(tensor.format):g} beyond them cost nothing"
        )


def wrong_scale(evidence: Evidence, tensor: TensorEvidence, problem: Problem) -> WrongScale | None:
    """Not None if amax and scale prove that the scale is not the recipe's, and the problem follows from that:
    values vanish below it, or clip above it. None also where they are not logged on enough steps of the
    problem, or where more than one scale is in use.
    """
    if tensor.recipe not in ONE_SCALE or tensor.format not in ("e4m3", "e5m2"):
        return None
    known = np.isfinite(tensor.amax) & np.isfinite(tensor.scale) & (tensor.amax > 0) & (tensor.scale > 0)
    first = max(problem.since_step, int(evidence.steps[-1]) - WINDOW_STEPS + 1)
    rows = np.flatnonzero(known & (evidence.steps >= first))
    if len(rows) < MIN_ROWS:
        return None
    log2_amax = np.where(known, np.log2(np.where(known, tensor.amax, 1.0)), -np.inf)
    bits = math.log2(FORMATS[tensor.format].max_finite) - log2_amax[rows] - np.log2(tensor.scale[rows])
    explained = _explained(evidence, tensor, log2_amax, rows)
    found = WrongScale(float(np.median(bits)), float(np.median(explained)), len(rows))
    vanishes = float(np.median(bits - explained)) > free_headroom_bits(tensor.format)
    clips = found.bits < -clipped_bits()
    if (vanishes and problem.what != "overflow_pct") or (clips and problem.what != "underflow_pct"):
        return found
    return None


def _explained(
    evidence: Evidence, tensor: TensorEvidence, log2_amax: NDArray[np.float64], rows: NDArray[np.int64]
) -> NDArray[np.float64]:
    """By row, the headroom that the recipe itself leaves, bits."""
    if tensor.recipe != "delayed":
        return np.zeros(len(rows))
    recipe = evidence.info.recipe
    margin = min(_number(recipe.get("margin"), 0.0), MOST_MARGIN)
    history = int(min(_number(recipe.get("amax_history_len"), DEFAULT_HISTORY), MOST_HISTORY))
    begin = np.searchsorted(evidence.steps, evidence.steps[rows] - history)
    highest = [log2_amax[a : b + 1].max() for a, b in zip(begin.tolist(), rows.tolist(), strict=True)]
    return margin + np.array(highest) - log2_amax[rows]


def _number(given: object, otherwise: float) -> float:
    """A finite number from 0 that a run's description gives, else another."""
    if isinstance(given, bool) or not isinstance(given, int | float):
        return otherwise
    return float(given) if 0 <= given < 1e18 else otherwise
