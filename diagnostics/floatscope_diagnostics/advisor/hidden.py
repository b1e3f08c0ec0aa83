"""Layers that a fault before them hides, and that will need the same change once it is mended.

Where a few rows of a weight are far larger than the others, one scale for the whole weight makes the others
vanish: the layer puts out zeros but for the channels of the large rows, and the layer that reads them shows
no problem, because zeros have none. With the first layer mended, that channel reaches it as an outlier. The
growth of single SwiGLU channels is the known case (arXiv 2409.12517).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from floatscope_diagnostics.advisor.advice import Problem
from floatscope_diagnostics.advisor.evidence import Evidence, TensorEvidence
from floatscope_diagnostics.advisor.other_scalings import is_all_zero

AMPLIFIED_BITS = 6.0
"""The largest value of a weight this many bits above that of its typical row: few rows are amplified. Of
log-normal values with sigma 2 in a matrix of 4096 x 4096 it is 4.8 bits, of Gaussian ones 0.5; an outlier
*column* lifts the largest value of every row, and the difference stays near 2."""
MOSTLY_ZERO = 0.8
"""Zeros in an input as a share of the values that vanish from the weight before it."""


@dataclass(frozen=True)
class Behind:
    """layer: hidden.  root: the layer before it whose weight has amplified rows.  amplified_bits: how far
    these lie above a typical row.  lost_pct: of the root's weight; about as much of the layer's input would
    vanish under one scale.
    """

    layer: str
    root: str
    amplified_bits: float
    lost_pct: float

    def sentence(self) -> str:
        """Why the layer changes though no statistic of its own is beyond a limit."""
        return (
            f"input: only zeros reach it now, because {self.root} loses its weights; once that is mended, "
            "the channels of the amplified rows there arrive as outliers of about "
            f"2^{self.amplified_bits:.0f} times the others, and about {self.lost_pct:.0f} % of the "
            "values would become zero"
        )


def behind(evidence: Evidence, problems: Sequence[Problem]) -> Mapping[str, Behind]:
    """By hidden layer. Layers with a problem of their own are not among them."""
    own = {problem.layer for problem in problems}
    found: dict[str, Behind] = {}
    for problem in problems:
        if problem.role != "weight" or problem.what != "underflow_pct":
            continue
        bits = amplified_bits(evidence, problem.layer)
        if bits is None or bits < AMPLIFIED_BITS:
            continue
        reader = _reader(evidence, problem.layer, problem.value, own)
        if reader is not None and reader not in found:
            found[reader] = Behind(reader, problem.layer, bits, problem.value)
    return found


def amplified_bits(evidence: Evidence, layer: str) -> float | None:
    """log2 of the largest value of the layer's weight over the mean of its rows; None if not logged."""
    weight = next((t for t in evidence.tensors if t.layer == layer and t.role == "weight"), None)
    stats = {} if weight is None or weight.histogram is None else weight.histogram.stats
    amax, row = stats.get("amax"), stats.get("row_amax_mean_log2")
    if amax is None or row is None or not math.isfinite(row) or not 0 < amax < math.inf:
        return None
    return math.log2(amax) - row


def _reader(evidence: Evidence, layer: str, lost_pct: float, own: Collection[str]) -> str | None:
    """The next layer of the same module whose input is (nearly) all zero."""
    order = evidence.layers
    module = layer.rpartition(".")[0]
    for name in order[order.index(layer) + 1 :]:
        if name.rpartition(".")[0] != module:
            return None
        inputs = (t for t in evidence.tensors if t.layer == name and t.role == "input")
        if name not in own and any(_is_hidden(t, lost_pct) for t in inputs):
            return name
    return None


def _is_hidden(tensor: TensorEvidence, lost_pct: float) -> bool:
    zero = None if tensor.histogram is None else tensor.histogram.stats.get("zero_pct")
    return is_all_zero(tensor) or (zero is not None and zero >= MOSTLY_ZERO * lost_pct)
