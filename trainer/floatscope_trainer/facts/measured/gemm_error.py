"""The longer the sum, the larger the error of an FP8 GEMM.

What people say
    FP8 matmuls lose accuracy as K grows, because rounding errors add up.
What is true
    With zero-mean data and accumulation in FP32 the relative error of a Gaussian product is 0.037 (E4M3 x
    E4M3) or 0.059 (E5M2 x E4M3) for every K: error and signal both grow with sqrt(K). Against its own
    dequantised operands it is 0.0017, the rounding of a BF16 result. What does grow with K is the error of an
    accumulator with few bits, as fast accumulation on Hopper has.
How it is measured
    Products 128 x K x 128 of N(0, 1) with K = 512, 4096 and 16384, one scale per tensor, accumulated in
    FP32, rounded to BF16, against FP64.
What to do
    Use these numbers as a self-test of a kernel: 0.0029 where 0.037 is expected means FP8 was not used, near
    1 a scale the wrong way round. floatscope preflight runs it on the GPU. With large K see FS304.
Source
    Measured, within 3 % from K = 512 to 16384; accumulator: DeepSeek-V3 (arXiv 2412.19437) section 3.3.
"""

from __future__ import annotations

import torch

from floatscope_trainer.facts.fact import Fact, Figure, Measured, Statement
from floatscope_trainer.facts.samples import gaussian, relative_error, tensor_scale, through

DEPTHS = (512, 4096, 16384)


def _errors(depth: int, left: str) -> tuple[float, float]:
    """Relative error against the exact product, and against that of the dequantised operands."""
    a, b = gaussian(128, depth), gaussian(depth, 128, seed=99)
    qa, qb = through(a, left, tensor_scale(a, left)), through(b, "e4m3", tensor_scale(b, "e4m3"))
    product = (qa @ qb).to(torch.bfloat16)
    return (
        relative_error(product, a.double() @ b.double()),
        relative_error(product, qa.double() @ qb.double()),
    )


def measure() -> Measured:
    """By depth and format."""
    e4m3 = {depth: _errors(depth, "e4m3") for depth in DEPTHS}
    e5m2 = _errors(4096, "e5m2")[0]
    growth = e4m3[16384][0] / e4m3[512][0]
    return Measured(
        figures=(
            *(
                Figure(f"E4M3 x E4M3, K = {depth}", error, published=(0.0365, 0.0385))
                for depth, (error, _) in e4m3.items()
            ),
            Figure("E5M2 x E4M3, K = 4096", e5m2, published=(0.057, 0.061)),
            Figure("against dequantised operands, K = 4096", e4m3[4096][1], published=(0.0014, 0.002)),
            Figure("error at K = 16384 over error at K = 512", growth, published=(0.97, 1.03)),
        ),
        claimed=(Statement("32 times the depth has at least 1.5 times the error", growth > 1.5),),
        true=(
            Statement("the error is the same within 3 %", abs(growth - 1) < 0.03),
            Statement("E5M2 x E4M3 has a larger one than E4M3 x E4M3", e5m2 > 1.3 * e4m3[4096][0]),
        ),
    )


FACT = Fact("gemm-error", "false", measure)
