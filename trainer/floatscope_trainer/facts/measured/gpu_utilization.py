"""GPU utilisation shows a failed scale.

What people say
    Diagnose scale failure by GPU utilisation at 100 %.
What is true
    Utilisation is the share of time in which any kernel ran. Kernels do the same work whatever the numbers
    are: a matmul of zeros occupies the GPU like a right one. It serves for stalls and throttling only.
How it is measured
    One linear layer, forward and backward, with a right scale and with one that flushes all to 0: the
    operations that torch dispatches and their FLOPs are recorded, and the results compared. On a GPU the
    kernels are those of these operations.
What to do
    Use utilisation and clocks for speed (FS502), statistics of tensors for numbers.
Source
    NVML, nvmlUtilization_t; measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from floatscope_trainer.facts.fact import Fact, Figure, Measured, Statement
from floatscope_trainer.facts.samples import gaussian, relative_error, tensor_scale


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every operation that is dispatched."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Sequence[Any], args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def _pass(x: Tensor, w: Tensor, scale: Tensor) -> tuple[Tensor, list[str], int]:
    """Output, operations and FLOPs of a forward and a backward pass with this scale."""
    weight = w.clone().requires_grad_()
    seen = _Operations()
    with FlopCounterMode(display=False) as flops, seen:
        q = (x * scale).to(torch.float8_e5m2).to(torch.float32) / scale
        out = q @ weight
        out.sum().backward()  # type: ignore[no-untyped-call]
    return out.detach(), seen.names, flops.get_total_flops()


def measure() -> Measured:
    """The same layer with a right and with a hopeless scale."""
    x, w = gaussian(256, 512), gaussian(512, 256, seed=7)
    scale = tensor_scale(x, "e5m2")
    right, right_ops, right_flops = _pass(x, w, scale)
    wrong, wrong_ops, wrong_flops = _pass(x, w, scale * 2.0**-40)
    same = right_ops == wrong_ops and right_flops == wrong_flops
    exact = x @ w
    return Measured(
        figures=(
            Figure("operations, right scale", len(right_ops)),
            Figure("operations, wrong scale", len(wrong_ops)),
            Figure("MFLOP, right scale", right_flops / 1e6),
            Figure("MFLOP, wrong scale", wrong_flops / 1e6),
            Figure("relative error, right scale", relative_error(right, exact), published=(0.01, 0.08)),
            Figure("relative error, wrong scale", relative_error(wrong, exact), published=(1, 1)),
        ),
        claimed=(Statement("a wrong scale changes the work that is done", not same),),
        true=(
            Statement("operations and FLOPs are the same", same),
            Statement("with the wrong scale the result is 0 everywhere", not bool(wrong.any())),
        ),
    )


FACT = Fact("gpu-utilization", "false", measure)
