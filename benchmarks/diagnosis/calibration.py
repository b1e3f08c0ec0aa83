"""Whether a confidence means what it says: of the answers given with 0.9, nine in ten should be right."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.diagnosis.outcome import Judged

EDGES = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
"""Bins of the reliability table; a confidence on an edge belongs to the bin above it, 1.0 to the last."""


@dataclass(frozen=True)
class Bin:
    """Answers whose confidence lies in [low, high).  mean: their mean confidence.  right: how many are."""

    low: float
    high: float
    count: int
    mean: float
    right: int


def answers(runs: Sequence[Judged]) -> list[tuple[float, bool]]:
    """(confidence, whether it is right) of the most important alarm of every run that has one; of one that is
    undetermined, of its best hypothesis.
    """
    right = [(r.confidence, r.cause_ok if r.hypothesis_ok is None else r.hypothesis_ok) for r in runs]
    return [(confidence, bool(ok)) for confidence, ok in right if confidence is not None]


def reliability(pairs: Sequence[tuple[float, bool]]) -> list[Bin]:
    """The bins that hold an answer."""
    bins: list[Bin] = []
    for low, high in itertools.pairwise(EDGES):
        inside = [(c, ok) for c, ok in pairs if low <= c < high or (c == high == EDGES[-1])]
        if inside:
            mean = sum(c for c, _ in inside) / len(inside)
            bins.append(Bin(low, high, len(inside), mean, sum(ok for _, ok in inside)))
    return bins


def brier(pairs: Sequence[tuple[float, bool]]) -> float | None:
    """Mean squared distance of the confidence from 1 (right) or 0 (wrong); None without an answer."""
    return sum((c - ok) ** 2 for c, ok in pairs) / len(pairs) if pairs else None


def expected_calibration_error(pairs: Sequence[tuple[float, bool]]) -> float | None:
    """Mean over answers of the distance, in their bin, between mean confidence and share right."""
    if not pairs:
        return None
    return sum(abs(b.mean * b.count - b.right) for b in reliability(pairs)) / len(pairs)


def calibration_table(runs: Sequence[Judged]) -> Iterator[str]:
    """The reliability table, and Brier score and ECE over all answers and per family answered."""
    yield "   confidence of the answer, mean, answers, share right"
    for part in reliability(answers(runs)):
        share = 100 * part.right / part.count
        yield f"   {part.low:.2f} to {part.high:.2f}     {part.mean:.2f}{part.count:>7}   {share:5.1f} %"
    yield "   per family answered: answers, Brier, ECE"
    for family in ("all", *sorted({r.family for r in runs if r.confidence is not None})):
        pairs = answers([r for r in runs if family in ("all", r.family)])
        score, error = brier(pairs), expected_calibration_error(pairs)
        if score is not None and error is not None:
            yield f"   {family:<28}{len(pairs):>5}   {score:.3f}   {error:.3f}"
