"""E5M2 has no subnormal numbers.

What people say
    E5M2 cannot represent subnormals: nothing exists below 6.1e-5.
What is true
    E5M2 follows IEEE 754: 6.1e-5 = 2^-14 is the smallest normal number; 4.58e-5, 3.05e-5 and 1.53e-5 = 2^-16
    follow, and only values of at most half of that become 0. It has infinities and NaN. E4M3 has subnormals
    down to 2^-9, no infinity and one NaN pattern per sign.
How it is measured
    All 256 codes of both formats are read as numbers, and values around the smallest one are cast.
What to do
    For the underflow of a format take half of its smallest subnormal, 2^-17 for E5M2 and 2^-10 for E4M3,
    divided by the scale.
Source
    OCP OFP8 1.0; arXiv 2209.05433 section 3.
"""

from __future__ import annotations

import torch

from floatscope_trainer.facts.fact import Fact, Figure, Measured, Statement


def measure() -> Measured:
    """Reads every code."""
    codes = torch.arange(256, dtype=torch.uint8)
    e5m2 = codes.view(torch.float8_e5m2).to(torch.float64)
    e4m3 = codes.view(torch.float8_e4m3fn).to(torch.float64)
    normal = 2.0**-14
    positive = e5m2[torch.isfinite(e5m2) & (e5m2 > 0)]
    below = int((positive < normal).sum())
    around = torch.tensor([2.0**-17, 2.0**-17 * 1.01]).to(torch.float8_e5m2).to(torch.float64)
    return Measured(
        figures=(
            Figure("E5M2 finite codes", float(torch.isfinite(e5m2).sum()), published=(248, 248)),
            Figure("E5M2 infinite codes", float(torch.isinf(e5m2).sum()), published=(2, 2)),
            Figure("E5M2 NaN codes", float(torch.isnan(e5m2).sum()), published=(6, 6)),
            Figure("E5M2 positive subnormals", below, published=(3, 3)),
            Figure("E5M2 smallest positive", float(positive.min()), published=(2.0**-16, 2.0**-16)),
            Figure("E4M3 finite codes", float(torch.isfinite(e4m3).sum()), published=(254, 254)),
            Figure("E4M3 smallest positive", float(e4m3[e4m3 > 0].min()), published=(2.0**-9, 2.0**-9)),
        ),
        claimed=(Statement("E5M2 has no number between 0 and 6.1e-5", below == 0),),
        true=(
            Statement("2^-17 becomes 0", float(around[0]) == 0),
            Statement("just above 2^-17 becomes 2^-16", float(around[1]) == 2.0**-16),
            Statement("E4M3 has no infinity", not torch.isinf(e4m3).any()),
        ),
    )


FACT = Fact("e5m2-subnormals", "false", measure)
