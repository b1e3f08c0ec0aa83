"""The margin does not apply to FP8.

What people say
    margin is not applicable to FP8, set it to 0.
What is true
    scale = (maximum / amax) / 2^margin. A margin of k bits keeps a tensor that grows by 2^k between two
    updates of a delayed scale from saturating, for k bits at the lower end, of which E4M3 has about 10 to
    spare. 0 is the default, not a law.
How it is measured
    A Gaussian tensor is cast to E4M3 with 0 to 16 bits of headroom (SQNR), and one that has grown 8 times
    since its scale was set is cast with margin 0 and 3 (share beyond 448).
What to do
    Delayed scaling and tensors that grow (FS201): margin 1 to 3, or current scaling, which needs none.
Source
    Transformer Engine, common/recipe/__init__.py, notes of DelayedScaling; measured.
"""

from __future__ import annotations

from floatscope_trainer.facts.fact import Fact, Figure, Measured, Statement
from floatscope_trainer.facts.samples import gaussian, overflow_pct, sqnr_db, tensor_scale, through

EXPECTED_DB = {0: (31.2, 31.8), 10: (31.0, 31.8), 12: (29.0, 30.8), 14: (18.0, 21.0), 16: (6.0, 9.0)}


def measure() -> Measured:
    """Headroom by bits, and a stale scale with and without a margin."""
    values = gaussian(1_000_000)
    scale = tensor_scale(values, "e4m3")
    sqnr = {bits: sqnr_db(values, through(values, "e4m3", scale / 2.0**bits)) for bits in EXPECTED_DB}
    grown = values * 8
    clipped = {bits: overflow_pct(grown, "e4m3", scale / 2.0**bits) for bits in (0, 3)}
    return Measured(
        figures=(
            *(
                Figure(f"SQNR with {bits} bits of headroom", value, "dB", EXPECTED_DB[bits])
                for bits, value in sqnr.items()
            ),
            Figure("grown x8, beyond 448 with margin 0", clipped[0], "%", (40, 60)),
            Figure("grown x8, beyond 448 with margin 3", clipped[3], "%", (0, 0)),
        ),
        claimed=(Statement("the margin changes nothing for a tensor that grew", clipped[0] == clipped[3]),),
        true=(
            Statement("10 bits of headroom cost less than 0.5 dB", sqnr[0] - sqnr[10] < 0.5),
            Statement("16 bits cost more than 15 dB", sqnr[0] - sqnr[16] > 15),
            Statement("margin 3 keeps a tensor that grew 8 times from saturating", clipped[3] == 0),
        ),
    )


FACT = Fact("margin", "false", measure)
