"""Gradient accumulation overflows FP8 after two additions.

What people say
    Gradient accumulation fails in FP8: two additions overflow.
What is true
    Frameworks accumulate in BF16 or FP32 (main gradients), never in FP8. If one did accumulate in E5M2,
    overflow would be rare; what kills it is swamping: an addend below half a step of the sum changes nothing,
    and after 64 additions most of the sum is wrong.
How it is measured
    Log-normal gradients (sigma 1) are added 2 and 64 times in E5M2 with one scale set by the first of them,
    and in FP32.
What to do
    Keep main gradients in FP32 (Megatron: --accumulate-allreduce-grads-in-fp32), also for many micro-batches.
Source
    Measured; Megatron-LM, distributed data parallel; Transformer Engine, fuse_wgrad_accumulation.
"""

from __future__ import annotations

import torch

from floatscope_trainer.facts.fact import Fact, Figure, Measured, Statement
from floatscope_trainer.facts.samples import lognormal, relative_error, tensor_scale, through

ELEMENTS = 200_000


def _accumulated(times: int) -> tuple[float, float, float]:
    """Share beyond E5M2's range in percent, relative error, sum over the true sum."""
    first = lognormal(ELEMENTS, median=1e-6, sigma=1.0, seed=0)
    scale = tensor_scale(first, "e5m2")
    exact = torch.zeros(ELEMENTS, dtype=torch.float64)
    kept = torch.zeros(ELEMENTS)
    beyond = torch.zeros(ELEMENTS, dtype=torch.bool)
    for k in range(times):
        grad = first if k == 0 else lognormal(ELEMENTS, median=1e-6, sigma=1.0, seed=k)
        exact += grad.double()
        summed = kept + grad
        beyond |= (summed * scale).abs() >= 61440.0
        kept = through(summed, "e5m2", scale)
    share = 100.0 * float(beyond.to(torch.float64).mean())
    return share, relative_error(kept, exact), float(kept.double().sum() / exact.sum())


def measure() -> Measured:
    """Adds in E5M2."""
    two, many = _accumulated(2), _accumulated(64)
    return Measured(
        figures=(
            Figure("beyond E5M2's range after 2 additions", two[0], "%", (0, 0.01)),
            Figure("beyond E5M2's range after 64 additions", many[0], "%", (0, 0.5)),
            Figure("relative error after 2 additions", two[1]),
            Figure("relative error after 64 additions", many[1], published=(0.3, 0.95)),
            Figure("sum over the true sum after 64 additions", many[2]),
        ),
        claimed=(Statement("two additions overflow more than 1 % of the elements", two[0] > 1),),
        true=(
            Statement("64 additions overflow less than 1 %", many[0] < 1),
            Statement("64 additions are wrong by more than 30 %: swamping", many[1] > 0.3),
        ),
    )


FACT = Fact("accumulation-in-fp8", "false", measure)
