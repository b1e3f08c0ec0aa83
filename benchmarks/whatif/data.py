"""Kinds of data whose what-if is checked, and what each should be flagged as."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Values = NDArray[np.float32]
ROWS, COLUMNS = 512, 1024


@dataclass(frozen=True)
class Kind:
    """name: as in the report.  make: from random numbers.  flags: codes that must be said, of those that
    benchmarks check.  group: which of the targets holds.
    """

    name: str
    make: Callable[[Generator], NDArray[np.floating]]
    flags: frozenset[str] = frozenset()
    group: str = "other"


CHECKED_FLAGS = frozenset({"power_concentrated", "blocks_unlike", "blocks_even"})

_SHAPE = (ROWS, COLUMNS)
_UNLIKE, _POWER = frozenset({"blocks_unlike"}), frozenset({"power_concentrated"})


def _sign(r: Generator) -> NDArray[np.floating]:
    return r.choice([-1.0, 1.0], _SHAPE)


def _log_normal(sigma: float) -> Callable[[Generator], NDArray[np.floating]]:
    return lambda r: np.exp(sigma * r.standard_normal(_SHAPE)) * _sign(r)


def _swiglu(r: Generator) -> NDArray[np.floating]:
    gate = r.standard_normal(_SHAPE)
    return gate / (1.0 + np.exp(-gate)) * r.standard_normal(_SHAPE)


def _outlier_channels(
    count: int = 4, size: float = 60.0, *, together: bool = False
) -> Callable[[Generator], NDArray[np.floating]]:
    def make(r: Generator) -> NDArray[np.floating]:
        x = r.standard_normal(_SHAPE)
        first = int(r.integers(COLUMNS - count))
        chosen = np.arange(first, first + count) if together else r.choice(COLUMNS, count, replace=False)
        x[:, chosen] *= size
        return x

    return make


def _large_rows(share: float, size: float) -> Callable[[Generator], NDArray[np.floating]]:
    def make(r: Generator) -> NDArray[np.floating]:
        x = r.standard_normal(_SHAPE)
        x[r.choice(ROWS, max(int(share * ROWS), 1), replace=False)] *= size
        return x

    return make


def _row_scale(of: Callable[[Generator], NDArray[np.floating]], sigma: float) -> Callable[..., Values]:
    return lambda r: of(r) * np.exp(sigma * r.standard_normal((ROWS, 1)))


def _spikes(r: Generator) -> NDArray[np.floating]:
    x = r.standard_normal(_SHAPE)
    x.ravel()[r.choice(x.size, 10, replace=False)] = 1000.0
    return x


def _gaussian(r: Generator) -> NDArray[np.floating]:
    return r.standard_normal(_SHAPE)


KINDS = (
    Kind("Gaussian", _gaussian, group="target"),
    Kind("Laplace", lambda r: r.laplace(size=_SHAPE)),
    Kind("Student t3", lambda r: r.standard_t(3, _SHAPE)),
    Kind("log-normal 1", _log_normal(1.0), group="target"),
    Kind("log-normal 2", _log_normal(2.0), group="target"),
    Kind("log-normal 3", _log_normal(3.0), _POWER),
    Kind("SwiGLU-like", _swiglu),
    Kind("channel scale 1.5", lambda r: _gaussian(r) * np.exp(1.5 * r.standard_normal((1, COLUMNS)))),
    Kind("outlier channels", _outlier_channels(), group="outliers"),
    Kind("16 channels x10", _outlier_channels(16, 10.0), group="outliers"),
    Kind("4 channels x500", _outlier_channels(4, 500.0), group="outliers"),
    Kind("10 together x20", _outlier_channels(10, 20.0, together=True), group="outliers"),
    Kind("5 % of rows x100", _large_rows(0.05, 100.0), _UNLIKE, "unlike"),
    Kind("5 % of rows x5", _large_rows(0.05, 5.0), _UNLIKE, "unlike"),
    Kind("one row x100", _large_rows(0.0, 100.0), _UNLIKE, "unlike"),
    Kind("uniform", lambda r: r.uniform(-1.0, 1.0, _SHAPE)),
    Kind("squared ReLU", lambda r: np.maximum(_gaussian(r), 0.0) ** 2),
    Kind("Gaussian, 320 wide", lambda r: _gaussian(r)[:, :320]),
    Kind("row scale 0.7", _row_scale(_gaussian, 0.7), _UNLIKE, "unlike"),
    Kind("row scale 1.5", _row_scale(_gaussian, 1.5), _UNLIKE, "unlike"),
    Kind("row scale 1, SwiGLU", _row_scale(_swiglu, 1.0), _UNLIKE, "unlike"),
    Kind("row scale 1, t3", _row_scale(lambda r: r.standard_t(3, _SHAPE), 1.0), _UNLIKE, "unlike"),
    Kind("10 spikes of 1000", _spikes, _POWER, "concentrated"),
)
