"""What a run costs at a price that the user gives; no price is shipped."""

from __future__ import annotations

from dataclasses import dataclass

from floatscope_diagnostics.plan.setup import PlanError

SECONDS_PER_HOUR = 3600.0
LEAST_PRICE, MOST_PRICE = 1e-9, 1e9
REMINDER = "30 % more throughput is 23.1 % less cost; 25 % less cost needs 33.3 % more throughput"


@dataclass(frozen=True)
class Interval:
    """A predicted number with the ends it is expected between."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> Interval:
        """The same in another unit; factor is positive."""
        return Interval(self.value * factor, self.low * factor, self.high * factor)


def around(value: float, band: float, over: float | None = None) -> Interval:
    """value x (1 - band) to value x (1 + over); over: the band where none is given."""
    return Interval(value, value * (1 - band), value * (1 + (band if over is None else over)))


def check_price(price: float) -> float:
    """The price itself. Raises PlanError unless it is a number that a price can be."""
    if not LEAST_PRICE <= price <= MOST_PRICE:  # NaN is not either
        raise PlanError(
            f"--price: expected what one GPU costs per hour, above 0 and up to {MOST_PRICE:g}, got {price:g}"
        )
    return price


def per_million_tokens(step_s: Interval, tokens_per_step: int, gpus: int, price: float) -> Interval:
    """Cost of a million tokens, in the currency of the price per GPU and hour."""
    return step_s.times(price * gpus / SECONDS_PER_HOUR / tokens_per_step * 1e6)


def saving_pct(speedup: Interval) -> Interval:
    """Percent less cost for the same tokens at the same price: 100 (1 - 1/s)."""
    return Interval(*(100.0 * (1 - 1 / s) for s in (speedup.value, speedup.low, speedup.high)))
