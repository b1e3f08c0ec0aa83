"""E5M2 has 4 numbers per decade.

What people say
    E5M2 offers 4 sample points per decade between 1e-6 and 1e-2.
What is true
    It has 4 numbers per binade, a factor of 2, so 13 or 14 per decade in its normal range, and without a
    scale none at all below 1.5e-5. E4M3 has 8 per binade.
How it is measured
    The codes of both formats in each decade and in one binade are counted.
What to do
    Think in binades: E5M2 spans 31.8 of them, E4M3 17.8. A scale decides where they lie.
Source
    OCP OFP8 1.0; counted.
"""

from __future__ import annotations

import torch
from torch import Tensor

from floatscope_trainer.facts.fact import Fact, Figure, Measured, Statement

DECADES = ((1e-6, 1e-5), (1e-5, 1e-4), (1e-4, 1e-3), (1e-3, 1e-2))
E5M2_IN = (0, 6, 14, 13)
E4M3_IN = (0, 0, 0, 5)


def _within(values: Tensor, low: float, high: float) -> int:
    return int(((values >= low) & (values < high)).sum())


def measure() -> Measured:
    """Counts codes."""
    codes = torch.arange(256, dtype=torch.uint8)
    e5m2 = codes.view(torch.float8_e5m2).to(torch.float64)
    e4m3 = codes.view(torch.float8_e4m3fn).to(torch.float64)
    by_decade = [_within(e5m2, low, high) for low, high in DECADES]
    figures = [
        Figure(f"E5M2 codes in {low:.0e} to {high:.0e}", count, published=(expected, expected))
        for (low, high), count, expected in zip(DECADES, by_decade, E5M2_IN, strict=True)
    ]
    figures += [
        Figure(
            f"E4M3 codes in {low:.0e} to {high:.0e}", _within(e4m3, low, high), published=(expected, expected)
        )
        for (low, high), expected in zip(DECADES, E4M3_IN, strict=True)
    ]
    per_binade = _within(e5m2, 1.0, 2.0), _within(e4m3, 1.0, 2.0)
    return Measured(
        figures=(
            *figures,
            Figure("E5M2 codes in 1 to 2", per_binade[0], published=(4, 4)),
            Figure("E4M3 codes in 1 to 2", per_binade[1], published=(8, 8)),
        ),
        claimed=(Statement("each decade from 1e-6 to 1e-2 has 4 numbers", by_decade == [4, 4, 4, 4]),),
        true=(
            Statement("a binade has 4 numbers in E5M2, 8 in E4M3", per_binade == (4, 8)),
            Statement("unscaled E5M2 has no number in the decade from 1e-6", by_decade[0] == 0),
        ),
    )


FACT = Fact("codes-per-binade", "false", measure)
