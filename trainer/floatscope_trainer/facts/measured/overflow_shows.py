"""An overflow in FP8 shows as inf, NaN or an error.

What people say
    FP8 overflow turns up as inf or NaN, or as "CUDA error: device-side assert"; counting NaN finds it.
What is true
    It depends on the cast. Transformer Engine's casts, and torch's to E4M3 since 2.12, saturate: 500 and even
    inf become 448, so an infinity disappears. torch's cast to E5M2 still gives inf from 61440 on; E4M3 gave
    NaN before 2.12. None of them raises: a device-side assert means an index out of range, so it speaks
    against an overflow.
How it is measured
    500, inf and NaN are cast to E4M3, 61440 and inf to E5M2, by the torch that is installed.
What to do
    Count non-finite values before the cast, as floatscope does (FS603), and record the cast's rule:
    floatscope preflight probes it.
Source
    Measured; pytorch pull request 178817; Transformer Engine, common/util/ptx.cuh (satfinite).
"""

from __future__ import annotations

import math

import torch

from floatscope_trainer.facts.fact import Fact, Figure, Measured, Statement


def _cast(value: float, dtype: torch.dtype) -> float:
    return float(torch.tensor([value]).to(dtype).to(torch.float32))


def measure() -> Measured:
    """Casts values beyond the range."""
    e4m3 = {v: _cast(v, torch.float8_e4m3fn) for v in (500.0, math.inf)}
    e5m2 = {v: _cast(v, torch.float8_e5m2) for v in (61440.0, math.inf)}
    nan = _cast(math.nan, torch.float8_e4m3fn)
    shows4 = not any(map(math.isfinite, e4m3.values()))
    shows5 = not any(map(math.isfinite, e5m2.values()))
    saturates = _version() >= (2, 12)
    return Measured(
        figures=(
            Figure("500 in E4M3", e4m3[500.0]),
            Figure("inf in E4M3", e4m3[math.inf]),
            Figure("61440 in E5M2", e5m2[61440.0]),
            Figure("inf in E5M2", e5m2[math.inf]),
        ),
        claimed=(
            Statement("an overflow or inf in E4M3 is inf or NaN after the cast", shows4),
            Statement("an overflow or inf in E5M2 is inf or NaN after the cast", shows5),
        ),
        true=(
            Statement("NaN stays NaN", math.isnan(nan)),
            Statement("no cast raised an error", True)
            if saturates
            else Statement("before torch 2.12 E4M3 does not saturate", shows4),
        ),
        says="partly" if saturates else "true",
        note=f"torch {torch.__version__}: casts to E4M3 are expected "
        + (
            "to saturate (2.12 or later)." if saturates else "to give NaN (before 2.12); newer ones saturate."
        ),
    )


def _version() -> tuple[int, int]:
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


FACT = Fact("overflow-shows", "partly", measure)
