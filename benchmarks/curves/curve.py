"""One synthetic curve: columns of scalars, and what a careful reader would say of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.batch import Batch

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class SyntheticCurve:
    """kind: of what it is a sample.  columns: name -> float64 (rows,); a masked entry is not logged.

    want: symptoms that are right, the first the best; empty for a healthy one.  onset: row at which it
    begins. first, every: step of the first row and from one row to the next.
    """

    kind: str
    columns: Mapping[str, Float64]
    want: tuple[str, ...] = ()
    onset: int | None = None
    first: int = 0
    every: int = 1
    missing: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return max(len(c) for c in self.columns.values())

    def batch(self) -> Batch:
        """All rows as one batch."""
        names = tuple(sorted(self.columns))
        step = self.first + self.every * np.arange(self.rows, dtype=np.int64)
        present = np.stack([~self.missing.get(n, np.zeros(self.rows, bool)) for n in names], axis=1)
        values = np.where(present, np.stack([self.columns[n] for n in names], axis=1), 0.0)
        return Batch(
            step=step,
            time=step.astype(np.float64),
            scalar_names=names,
            scalars=values,
            scalars_present=present,
        )


def cosine(rows: int, *, peak: float = 3e-4, warmup: float = 0.03) -> Float64:
    """A learning rate with warm-up and cosine decay to a tenth."""
    t = np.arange(rows) / rows
    decay = 0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * np.clip((t - warmup) / (1 - warmup), 0, 1)))
    return peak * np.minimum((np.arange(rows) + 1) / max(warmup * rows, 1), 1.0) * decay


def power_law(rows: int, rng: np.random.Generator, *, start: float, end: float) -> Float64:
    """From ``start`` towards ``end`` as a power of the step (Kaplan 2020: exponents 0.05 to 1 in steps)."""
    exponent = rng.uniform(0.35, 0.8)
    offset = rows * rng.uniform(0.004, 0.03) + 1
    return end + (start - end) * (1 + np.arange(rows) / offset) ** -exponent


def ar(rows: int, rng: np.random.Generator, *, rho: float, sd: float) -> Float64:
    """Autoregressive noise of order 1 with a standard deviation of ``sd``."""
    shocks = rng.normal(size=rows) * sd * np.sqrt(1 - rho * rho)
    out = np.empty(rows)
    last = rng.normal() * sd
    for i, shock in enumerate(shocks.tolist()):
        last = rho * last + shock
        out[i] = last
    return out


def norms(loss: Float64, rng: np.random.Generator) -> Float64:
    """Gradient norms: log-normal, falling with the run."""
    return np.exp(rng.normal(size=len(loss)) * 0.25) * (0.4 + 2.0 / (1 + np.arange(len(loss)) / 20.0))


def sparse(values: Float64, every: int) -> NDArray[np.bool_]:
    """Which rows lack a value that is logged every so many-th row only."""
    lacks: NDArray[np.bool_] = np.arange(len(values)) % every != every - 1
    return lacks
