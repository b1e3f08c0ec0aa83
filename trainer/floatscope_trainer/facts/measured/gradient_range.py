"""Gradients fit E5M2's range as they are.

What people say
    Gradients of 1e-6 to 1e-2 lie in E5M2's sweet zone: the format is why FP8 gradients work.
What is true
    Without a scale gradients around 1e-6 nearly all become 0, in E5M2 as in E4M3. With one scale per tensor
    next to nothing is lost, even in E4M3. The scale makes it work, not the format.
How it is measured
    A million log-normal magnitudes with median 1e-6 (sigma 1.5) are cast with and without a scale; the share
    that becomes 0 is counted.
What to do
    Watch the underflow of grad_output tensors (FS301). One scale per tensor: Format.HYBRID, E5M2 gradients;
    row, block and MX scales: E4M3 everywhere.
Source
    Measured; recipes: Transformer Engine, common/recipe; arXiv 2506.08027.
"""

from __future__ import annotations

from floatscope_trainer.facts.fact import Fact, Figure, Measured, Statement
from floatscope_trainer.facts.samples import lognormal, tensor_scale, through, underflow_pct


def measure() -> Measured:
    """Casts with and without a scale."""
    grads = lognormal(1_000_000, median=1e-6, sigma=1.5)
    bare = {fmt: underflow_pct(grads, through(grads, fmt)) for fmt in ("e5m2", "e4m3")}
    scaled = {
        fmt: underflow_pct(grads, through(grads, fmt, tensor_scale(grads, fmt))) for fmt in ("e5m2", "e4m3")
    }
    return Measured(
        figures=(
            Figure("lost in E5M2 without a scale", bare["e5m2"], "%", (89, 93)),
            Figure("lost in E4M3 without a scale", bare["e4m3"], "%", (99.99, 100)),
            Figure("lost in E5M2 with one scale per tensor", scaled["e5m2"], "%", (0, 0.001)),
            Figure("lost in E4M3 with one scale per tensor", scaled["e4m3"], "%", (0, 0.05)),
        ),
        claimed=(Statement("E5M2 keeps most of them without a scale", bare["e5m2"] < 50),),
        true=(
            Statement("without a scale E5M2 loses more than 80 %", bare["e5m2"] > 80),
            Statement("with a scale both formats lose less than 0.1 %", max(scaled.values()) < 0.1),
        ),
    )


FACT = Fact("gradient-range", "false", measure)
