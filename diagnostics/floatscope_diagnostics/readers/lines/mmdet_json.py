"""mmcv, mmdet and mmengine ``.log.json`` / ``scalars.json``: one JSON object a record.

mmcv names ``mode``, ``epoch`` and ``iter`` inside the epoch. mmengine names ``step``, which is the iteration
on training records and the epoch on validation records.
"""

from __future__ import annotations

from typing import Any

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.json_lines import JsonLines, first_objects, numbers
from floatscope_diagnostics.readers.line_format import LineFormat
from floatscope_diagnostics.readers.numbers import whole
from floatscope_diagnostics.readers.piece import EVAL, Piece

_PLACE = frozenset(("epoch", "iter", "step", "mode"))
_RENAMED = {"time": "step_time_s", "data_time": "data_time_s", "memory": "memory_mib"}
_LR = ("lr", "base_lr")


def certainty(head: Head) -> float:
    """Sure where records name mode, epoch and iter (mmcv), or a learning rate, iter and step (mmengine)."""
    for value in first_objects(head):
        if {"mode", "epoch", "iter"} <= value.keys() and value["mode"] in ("train", "val"):
            return 0.96
        if {"iter", "step", "data_time", "lr"} <= value.keys():
            return 0.96
    return 0.0


def read(value: dict[str, Any]) -> Piece | None:
    """A training or validation record; None for the environment record at the head."""
    if not {"mode", "iter", "step"} & value.keys():
        return None
    found = numbers(value)
    epoch, at = found.get("epoch"), whole(found.get("iter"))
    training = value.get("mode") == "train" if "mode" in value else "iter" in value and "data_time" in value
    values = {_RENAMED.get(k, k): v for k, v in found.items() if k not in _PLACE}
    if not values:
        return None
    if not training:
        for name in (*_LR, "step_time_s", "data_time_s"):
            values.pop(name, None)
        if "loss" in values:
            values["eval_loss"] = values.pop("loss")
        return Piece(values, epoch=epoch, kind=EVAL) if values else None
    if "lr" not in values and "base_lr" in values:
        values["lr"] = values["base_lr"]
    step = None if "mode" in value else whole(found.get("step"))
    return Piece(values, step=step, epoch=epoch, batch=at)


FORMAT = LineFormat("mmdet_json", "mmdet / mmengine JSON lines", certainty, lambda: JsonLines(read))
