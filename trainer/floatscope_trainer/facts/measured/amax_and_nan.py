"""A NaN in a tensor shows in its amax.

What people say
    Watch amax: a tensor that has gone bad has amax NaN or inf.
What is true
    Transformer Engine's kernels take amax with fmaxf, which drops NaN: a tensor that is partly NaN reports a
    healthy amax, one that is all NaN reports 0, and a delayed scale stays as it is. inf does show. torch.max
    (torchao) keeps NaN.
How it is measured
    A Gaussian tensor with 128 NaN, and one of NaN only, through fmax (C's and the kernels' rule) and through
    torch.max.
What to do
    Count NaN and inf by themselves, before the cast (FS101, FS603); never infer them from amax.
Source
    Transformer Engine d0067d0, common/cast/fp8/quantize_fp8.cuh:175; measured.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from floatscope_trainer.facts.fact import Fact, Figure, Measured, Statement
from floatscope_trainer.facts.samples import gaussian


def _fmax(values: Tensor) -> float:
    """Folds |values| with fmax from 0, as the kernels do."""
    found = torch.cat([torch.zeros(1), values.abs()])
    while found.numel() > 1:
        half = found.numel() // 2
        rest = found[2 * half :]
        found = torch.cat([torch.fmax(found[:half], found[half : 2 * half]), rest])
    return float(found)


def measure() -> Measured:
    """Both ways to take amax."""
    clean = gaussian(10_000)
    poisoned = clean.clone()
    poisoned[::79] = math.nan
    poisoned[clean.abs().argmax()] = clean[clean.abs().argmax()]  # the largest element stays
    empty = torch.full((10_000,), math.nan)
    infinite = clean.clone()
    infinite[5] = math.inf
    healthy, partly, all_nan = _fmax(clean), _fmax(poisoned), _fmax(empty)
    return Measured(
        figures=(
            Figure("NaN elements", float(poisoned.isnan().sum())),
            Figure("amax by fmax, clean", healthy),
            Figure("amax by fmax, with the NaN", partly),
            Figure("amax by fmax, all NaN", all_nan, published=(0, 0)),
            Figure("amax by fmax, one inf", _fmax(infinite)),
            Figure("amax by torch.max, with the NaN", float(poisoned.abs().max())),
        ),
        claimed=(
            Statement("NaN shows in amax by fmax", math.isnan(partly)),
            Statement("inf shows in amax by fmax", math.isinf(_fmax(infinite))),
        ),
        true=(
            Statement("with the NaN amax equals that of the clean tensor", partly == healthy),
            Statement("torch.max keeps the NaN", math.isnan(float(poisoned.abs().max()))),
        ),
    )


FACT = Fact("amax-and-nan", "partly", measure)
