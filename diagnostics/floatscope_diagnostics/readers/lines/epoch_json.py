"""One JSON object an epoch, as DINO, MAE, DeiT and timm's descendants write ``log.txt``: keys ``train_loss``,
``test_loss``, ``epoch``, and no step."""

from __future__ import annotations

from typing import Any

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.json_lines import JsonLines, first_objects, numbers
from floatscope_diagnostics.readers.line_format import LineFormat
from floatscope_diagnostics.readers.names import guess
from floatscope_diagnostics.readers.piece import Piece

_STEPS = ("step", "global_step", "iter", "iteration", "it", "current_steps", "global_step/max_steps")


def certainty(head: Head) -> float:
    """Sure where a record names an epoch and a training loss, and no step."""
    for value in first_objects(head):
        if "epoch" in value and "train_loss" in value and not any(s in value for s in _STEPS):
            return 0.96
    return 0.0


def read(value: dict[str, Any]) -> Piece | None:
    """The record of an epoch; None without one."""
    found = numbers(value)
    epoch = found.pop("epoch", None)
    if epoch is None:
        return None
    mapping = guess(found)
    return Piece({mapping.get(k, k): v for k, v in found.items()}, epoch=epoch)


FORMAT = LineFormat("epoch_json", "JSON lines, one an epoch", certainty, lambda: JsonLines(read))
