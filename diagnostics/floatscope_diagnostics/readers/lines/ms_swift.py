"""ms-swift's logging.jsonl: ``{"loss": 0.67, "grad_norm": 0.2, "epoch": 0.28, "global_step/max_steps":
"601/2161", "train_speed(iter/s)": 0.02, ...}``.
"""

from __future__ import annotations

from typing import Any

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.json_lines import JsonLines, first_objects, numbers
from floatscope_diagnostics.readers.line_format import LineFormat
from floatscope_diagnostics.readers.lines.hf_stdout import training_values
from floatscope_diagnostics.readers.numbers import to_int
from floatscope_diagnostics.readers.piece import EVAL, TRAIN, Piece

_STEP = "global_step/max_steps"
_SPEED, _TIME = "train_speed(iter/s)", "train_speed(s/it)"


def certainty(head: Head) -> float:
    """Its step key."""
    return 0.97 if any(_STEP in x for x in first_objects(head)) else 0.0


def read(value: dict[str, Any]) -> Piece | None:
    """One record; the last ones hold means over the run or the paths of checkpoints."""
    if "train_runtime" in value or not {"loss", "eval_loss"} & set(value):
        return None
    found = numbers(value)
    step, epoch = to_int(str(value.get(_STEP, "")).split("/")[0]), found.pop("epoch", None)
    per_second, seconds = found.pop(_SPEED, None), found.pop(_TIME, None)
    if per_second is not None and per_second > 0:
        found["step_time_s"] = 1 / per_second
    elif seconds is not None:
        found["step_time_s"] = seconds
    values, note = training_values(found)
    kind = EVAL if "eval_loss" in values and "loss" not in values else TRAIN
    return Piece(values, step=step, epoch=epoch, kind=kind, note=note)


FORMAT = LineFormat("ms_swift", "ms-swift logging.jsonl", certainty, lambda: JsonLines(read))
