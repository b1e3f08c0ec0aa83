"""LLaMA-Factory's trainer_log.jsonl: ``{"current_steps": 10, "total_steps": 9750, "loss": 2.7, "eval_loss":
null, "reward": null, "learning_rate": 5e-05, "epoch": 0.02, ...}``.

null means "not in this record". A loss of exactly 0.0 is written as it is: it may be a true one.
"""

from __future__ import annotations

from typing import Any

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.json_lines import JsonLines, first_objects, numbers
from floatscope_diagnostics.readers.line_format import LineFormat
from floatscope_diagnostics.readers.lines.hf_stdout import training_values
from floatscope_diagnostics.readers.numbers import to_int
from floatscope_diagnostics.readers.piece import EVAL, TRAIN, Piece

_LEFT_OUT = ("total_steps", "percentage")


def certainty(head: Head) -> float:
    """Its two counters."""
    return 0.97 if any({"current_steps", "total_steps"} <= set(x) for x in first_objects(head)) else 0.0


def read(value: dict[str, Any]) -> Piece | None:
    """One record."""
    found = {k: v for k, v in numbers(value).items() if k not in _LEFT_OUT}
    step, epoch = to_int(str(found.pop("current_steps", None))), found.pop("epoch", None)
    if step is None:
        return None
    values, note = training_values(found)
    kind = EVAL if "eval_loss" in values and "loss" not in values else TRAIN
    return Piece(values, step=step, epoch=epoch, kind=kind, note=note) if values else None


FORMAT = LineFormat("llamafactory", "LLaMA-Factory trainer_log.jsonl", certainty, lambda: JsonLines(read))
