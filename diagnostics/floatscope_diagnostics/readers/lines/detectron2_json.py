"""detectron2 ``metrics.json``: one JSON object an iteration, written by its JSONWriter.

``time`` is seconds an iteration; a record without ``total_loss`` and ``lr`` holds the results of an
evaluation.
"""

from __future__ import annotations

from typing import Any

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.json_lines import JsonLines, first_objects, numbers
from floatscope_diagnostics.readers.line_format import LineFormat
from floatscope_diagnostics.readers.piece import EVAL, Piece

_RENAMED = {
    "total_loss": "loss",
    "validation_loss": "eval_loss",
    "time": "step_time_s",
    "data_time": "data_time_s",
}


def certainty(head: Head) -> float:
    """Sure where a record names iteration, eta_seconds and a data time."""
    objects = list(first_objects(head))
    return 0.96 if any({"iteration", "eta_seconds", "data_time"} <= o.keys() for o in objects) else 0.0


def read(value: dict[str, Any]) -> Piece | None:
    """The record; None without an iteration."""
    found = numbers(value)
    at = found.pop("iteration", None)
    if at is None or at != at or abs(at) >= 2**53:
        return None
    found.pop("eta_seconds", None)
    values = {_RENAMED.get(k, k): v for k, v in found.items()}
    if not {"loss", "lr", "step_time_s"} & values.keys():
        return Piece(values, step=int(at), kind=EVAL)
    return Piece(values, step=int(at))


FORMAT = LineFormat("detectron2_json", "detectron2 metrics.json", certainty, lambda: JsonLines(read))
