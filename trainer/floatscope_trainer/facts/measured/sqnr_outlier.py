"""A high SQNR means the tensor survived.

What people say
    Judge a quantised tensor by its signal to noise ratio.
What is true
    SQNR is about energy. With one large outlier per tensor the ratio rises while nearly all other elements
    become 0: the outlier holds the energy.
How it is measured
    A Gaussian tensor of a million elements is cast to E4M3, then once more with one outlier that raises amax
    enough to flush the rest.
What to do
    Read underflow and overflow first, SQNR as support; floatscope what-if gives the SQNR of the bulk where a
    few elements hold the power.
Source
    Measured.
"""

from __future__ import annotations

from floatscope_trainer.facts.fact import Fact, Figure, Measured, Statement
from floatscope_trainer.facts.samples import gaussian, sqnr_db, tensor_scale, through, underflow_pct

OUTLIER = 1e8  # in units of the standard deviation: 1 becomes 448e-8, far below half of 2^-9


def measure() -> Measured:
    """With and without the outlier."""
    clean = gaussian(1_000_000)
    spiked = clean.clone()
    spiked[0] = OUTLIER
    got = {name: through(v, "e4m3", tensor_scale(v, "e4m3")) for name, v in (("c", clean), ("s", spiked))}
    sqnr = sqnr_db(clean, got["c"]), sqnr_db(spiked, got["s"])
    lost = underflow_pct(clean, got["c"]), underflow_pct(spiked, got["s"])
    return Measured(
        figures=(
            Figure("SQNR, no outlier", sqnr[0], "dB", (31, 32)),
            Figure("SQNR, one outlier", sqnr[1], "dB"),
            Figure("lost, no outlier", lost[0], "%", (0, 0.1)),
            Figure("lost, one outlier", lost[1], "%", (99, 100)),
        ),
        claimed=(
            Statement(
                "the tensor with the higher SQNR keeps more elements",
                (sqnr[1] > sqnr[0]) == (lost[1] < lost[0]),
            ),
        ),
        true=(
            Statement("with the outlier SQNR is higher and 99 % is lost", sqnr[1] > sqnr[0] and lost[1] > 99),
        ),
    )


FACT = Fact("sqnr-outlier", "false", measure)
