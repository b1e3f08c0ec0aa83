"""A replay as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from floatscope_trainer.replay.answer import Answer
from floatscope_trainer.replay.variants import Outcome


def table(
    outcomes: Sequence[Outcome], found: Answer, *, step: int, layer: str | None, is_same_batch: bool | None
) -> str:
    """One line per variant, then the answer."""
    head = f"step {step}" + ("" if layer is None else f", suspect {layer}")
    if is_same_batch is not None:
        head += ", captured batch " + (
            "as the run draws it" if is_same_batch else "in place of the run's own"
        )
    lines = [head, "", f"{'':<14}{'loss':>12}{'grad norm':>12}{'gradients off by':>18}  at worst"]
    for outcome in outcomes:
        line = f"{outcome.variant.name:<14}{_number(outcome.loss):>12}{_number(outcome.grad_norm):>12}"
        error = outcome.error
        if error is None or error.worst == 0:
            line += f"{'-' if error is None else '0':>18}"
        else:
            line += f"{_share(error.whole):>18}  {_share(error.worst)} in {error.worst_weight}"
        lines.append(line)
    return "\n".join([*lines, "", f"{found.verdict.replace('_', ' ')}: {found.summary}"])


def _number(value: float) -> str:
    return f"{value:.5g}" if math.isfinite(value) else str(value)


def _share(value: float) -> str:
    return f"{100 * value:.3g} %"
