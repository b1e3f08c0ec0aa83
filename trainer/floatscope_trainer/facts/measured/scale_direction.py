"""The tensor is divided by the scale 448 / amax.

What people say
    X_fp8 = X / s with s = 448 / max|X|.
What is true
    A scale of 448 / amax multiplies: q = cast(X * s). To divide, take its inverse amax / 448. Taken literally
    the formula sends nearly all of a tensor to 0, without an error or a NaN.
How it is measured
    A Gaussian tensor of a million elements with amax 1 is cast to E4M3 both ways.
What to do
    When a scale is logged or loaded from a checkpoint, know which one it is: Transformer Engine logs
    scale_inv, torchao the multiplying scale. A relative GEMM error near 1 points here.
Source
    Measured; Transformer Engine, common/recipe/__init__.py.
"""

from __future__ import annotations

from floatscope_trainer.facts.fact import Fact, Figure, Measured, Statement
from floatscope_trainer.facts.samples import gaussian, sqnr_db, tensor_scale, through, underflow_pct


def measure() -> Measured:
    """Multiplies and divides."""
    values = gaussian(1_000_000)
    values /= values.abs().amax()
    scale = tensor_scale(values, "e4m3")
    right, wrong = through(values, "e4m3", scale), through(values, "e4m3", 1 / scale)
    lost_right, lost_wrong = underflow_pct(values, right), underflow_pct(values, wrong)
    return Measured(
        figures=(
            Figure("lost when divided by 448 / amax", lost_wrong, "%", (90, 99)),
            Figure("lost when multiplied by it", lost_right, "%", (0, 0.1)),
            Figure("SQNR when divided", sqnr_db(values, wrong), "dB"),
            Figure("SQNR when multiplied", sqnr_db(values, right), "dB", (31, 32)),
        ),
        claimed=(Statement("dividing keeps at least half of the elements", lost_wrong < 50),),
        true=(Statement("multiplying loses less than 0.1 %", lost_right < 0.1),),
    )


FACT = Fact("scale-direction", "false", measure)
