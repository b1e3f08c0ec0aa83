"""Sentences of an advice that more than one part says."""

from __future__ import annotations

from floatscope_diagnostics.advisor.advice import Advice, Problem

ALWAYS = (
    "Embedding, output head, norms, softmax, residual additions, the loss and a router stay in BF16 or FP32 "
    "whatever the statistics say; they are not counted here."
)

_STATED = ("no_gap", "passed", "may_follow", "everywhere", "gap_without_problem", "max_layers", "no_recipe",
           "nonfinite")  # fmt: skip
_CAUSES = ("cause_", "scale_state")


def is_cause(code: str) -> bool:
    """Whether a note of this code says that something else must be mended than the precision of layers."""
    return code.startswith(_CAUSES)


def is_stated(code: str) -> bool:
    """Whether a note of this code states something, rather than what could not be decided."""
    return is_cause(code) or code in _STATED


def problem_sentence(problem: Problem) -> str:
    """What is wrong with a tensor, since when."""
    value = f"{problem.value:.1f}" if problem.value < 100 else f"{problem.value:.0f}"
    what = {
        "underflow_pct": f"{value} % of its values become zero",
        "overflow_pct": f"{value} % of its values are clipped",
        "sqnr_loss_db": f"SQNR {value} dB below what the format can do",
    }[problem.what]
    return (
        f"{problem.role}: {what} (limit {problem.limit:g} {problem.unit}), since step {problem.since_step:,}"
    )


def counted(number: int, one: str) -> str:
    """ "1 layer", "3 layers"."""
    return f"{number:,} {one}" if number == 1 else f"{number:,} {one}s"


def targets(advice: Advice) -> str:
    """ "2 layers to BF16 and 1 to mxfp8"."""
    by: dict[str, int] = {}
    for layer in advice.layers:
        by[layer.to] = by.get(layer.to, 0) + 1
    parts = [f"{number:,} to {'BF16' if to == 'bf16' else to}" for to, number in by.items()]
    return " and ".join(parts)
