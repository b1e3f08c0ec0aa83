"""INT8 is as good as FP8: both have 8 bits.

What people say
    Eight bits are eight bits; INT8 would do for training as well as FP8.
What is true
    On Gaussian data INT8 with one scale is better than E4M3, 0.016 against 0.037. Real activations have
    outlier channels: there INT8 becomes 3 times worse than E4M3, while E4M3 keeps its error, because a
    floating-point grid is dense near 0 whatever amax is.
How it is measured
    Products 256 x 4096 x 256 of N(0, 1), then with 0.4 % of the channels of the activations 60 times larger;
    one scale per tensor (INT4: per row); against FP64.
What to do
    Use INT formats as a what-if only (floatscope what-if --format int8_tensor); there is no published INT8 or
    INT4 recipe for pre-training at scale.
Source
    Measured; torchao, prototype/quantized_training.
"""

from __future__ import annotations

from torch import Tensor

from floatscope_trainer.facts.fact import Fact, Figure, Measured, Statement
from floatscope_trainer.facts.samples import gaussian, relative_error, tensor_scale, through

DEPTH, CHANNELS, FACTOR = 4096, 16, 60.0


def _int(values: Tensor, limit: int, *, by_row: bool) -> Tensor:
    """Symmetric integers from -limit to limit, one scale per tensor or row."""
    amax = values.abs().amax(dim=1, keepdim=True) if by_row else values.abs().amax()
    return (values * (limit / amax)).round() * (amax / limit)


def _errors(a: Tensor, b: Tensor) -> dict[str, float]:
    """Relative error by format; a and b are (rows, depth)."""
    exact = a.double() @ b.double().t()
    kept = {
        "E4M3": [through(v, "e4m3", tensor_scale(v, "e4m3")) for v in (a, b)],
        "INT8": [_int(v, 127, by_row=False) for v in (a, b)],
        "INT4": [_int(v, 7, by_row=True) for v in (a, b)],
    }
    return {fmt: relative_error(x.double() @ y.double().t(), exact) for fmt, (x, y) in kept.items()}


def measure() -> Measured:
    """Without and with outlier channels."""
    a, b = gaussian(256, DEPTH), gaussian(256, DEPTH, seed=5)
    plain = _errors(a, b)
    a[:, :CHANNELS] *= FACTOR
    spiked = _errors(a, b)
    return Measured(
        figures=tuple(
            Figure(f"{fmt}, {kind}", found[fmt], published=ranges[fmt])
            for kind, found, ranges in (
                ("Gaussian", plain, {"E4M3": (0.036, 0.039), "INT8": (0.013, 0.02), "INT4": (0.18, 0.26)}),
                ("outlier channels", spiked, {"E4M3": (0.03, 0.045), "INT8": (0.09, 0.16), "INT4": None}),
            )
            for fmt in found
        ),
        claimed=(
            Statement("INT8 is no worse than E4M3 on Gaussian data", plain["INT8"] <= plain["E4M3"]),
            Statement("INT8 is no worse than E4M3 with outlier channels", spiked["INT8"] <= spiked["E4M3"]),
        ),
        true=(
            Statement(
                "with outliers INT8 is at least twice as bad as E4M3", spiked["INT8"] > 2 * spiked["E4M3"]
            ),
            Statement("E4M3 changes by less than 20 %", abs(spiked["E4M3"] / plain["E4M3"] - 1) < 0.2),
        ),
    )


FACT = Fact("int8-outliers", "partly", measure)
