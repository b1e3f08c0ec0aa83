"""What the casts of a run lose at its end, for the decision: a loss seldom shows it in a short run.

The advisor's measure and limit: the SQNR of a cast, over a hundred steps and to the last of them, against
what its format reaches. Shares of underflow and overflow are left to the findings: a healthy run with
unevenly spread gradients may lose many small values and little power.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.advisor.evidence import evidence_of
from floatscope_diagnostics.advisor.limits import default_limits
from floatscope_diagnostics.advisor.problems import problems_of
from floatscope_diagnostics.compare.tensor_log import TensorLog


@dataclass(frozen=True)
class LossyCast:
    """A tensor whose cast loses more than its format must. short_db: its SQNR below the format's, dB.  since:
    first step beyond the limit.
    """

    tensor: str
    short_db: float
    since: int


def lossy_casts(info: RunInfo, log: TensorLog) -> tuple[LossyCast, ...]:
    """The worst first; empty also where no SQNR was logged."""
    if not {"sqnr_db"} & log.stats():
        return ()
    found = problems_of(evidence_of(info, log), default_limits()).current
    return tuple(LossyCast(p.tensor, p.value, p.since_step) for p in found if p.what == "sqnr_loss_db")


def said_of(casts: Sequence[LossyCast]) -> str:
    """The worst in words, and how many; "" for none."""
    if not casts:
        return ""
    worst = casts[0]
    many = f", the most of {len(casts):,}" if len(casts) > 1 else ""
    return (
        f"the cast of {worst.tensor} has lost {worst.short_db:.0f} dB more than its format must since step "
        f"{worst.since:,}{many}"
    )
