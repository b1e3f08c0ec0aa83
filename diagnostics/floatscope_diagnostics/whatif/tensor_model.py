"""What one scale for all elements does to a distribution."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np

from floatscope_diagnostics.whatif.chance import Drawn, chance, first_of_few
from floatscope_diagnostics.whatif.density import Floats, Points
from floatscope_diagnostics.whatif.grids import Grid, quantize

CAST_LIMIT = 1.0 + 2.0**-20
"""Above this many times a format's maximum a scaled value counts as overflow, as in the agent's
statistics: a scale made from amax maps it onto the maximum, give or take its last bits."""

BULK_WITHOUT = 100
"""Elements left out of the bulk: those that hold most of the power where a few do."""


@dataclass(frozen=True)
class Losses:
    """Shares of the non-zero elements, 0 to 1, and mean squares over amax squared.

    chance: of ``chance.chance``.
    """

    under: float
    over: float
    noise: float
    bulk_noise: float
    power: float
    bulk_power: float
    chance: float = 0.0

    @property
    def chance_db(self) -> float:
        """Standard deviation of the SQNR."""
        return 10.0 / math.log(10.0) * math.sqrt(self.chance)

    @property
    def sqnr_db(self) -> float | None:
        """10 log10(power / noise); None without noise or power."""
        return _db(self.power, self.noise)

    @property
    def bulk_sqnr_db(self) -> float | None:
        """The same of the bulk."""
        return _db(self.bulk_power, self.bulk_noise)

    def mixed(self, other: Losses, share: float) -> Losses:
        """Of elements of which a share, 0 to 1, loses as the other's do."""
        return Losses(
            *((1.0 - share) * getattr(self, f.name) + share * getattr(other, f.name) for f in fields(self))
        )


def _db(power: float, noise: float) -> float | None:
    return float(10.0 * np.log10(power / noise)) if power > 0 and noise > 0 else None


def with_one_scale(points: Points, grid: Grid, scale: float) -> Losses:
    """Rounds every point.  scale: finite and above 0."""
    error, zero, over = rounded(points.x, points.x * scale, grid, 1.0 / scale)
    unit = points.x[-1] ** -1.0
    square = (points.x * unit) ** 2
    noise = (error * unit) ** 2
    bulk = points.bulk(BULK_WITHOUT)
    whole_noise, power = float(points.w @ noise), float(points.w @ square)
    few, w = noise[first_of_few(points) :], points.w[first_of_few(points) :]
    return Losses(
        under=float(points.w @ zero),
        over=float(points.w @ over),
        noise=whole_noise,
        bulk_noise=float(bulk @ noise),
        power=power,
        bulk_power=float(bulk @ square),
        chance=chance(points, (Drawn(w, w * few, w * few * few),), whole_noise, power),
    )


def rounded(x: Floats, scaled: Floats, grid: Grid, back: Floats | float) -> tuple[Floats, Floats, Floats]:
    """x minus what the cast leaves of it, and where that is zero and where it was beyond the maximum."""
    value = quantize(scaled, grid)
    return x - value * back, (value == 0).astype(np.float64), (scaled > grid.max * CAST_LIMIT).astype(float)
