"""modded-nanogpt: ``step:125/3090 val_loss:4.78 train_time:76.8s step_avg:614.43ms``, one file a run that
begins with the training script's own source, or many trials in a file, ``trial:2/30 seed:1``.

``step_avg:nanms`` stands on the first steps, before the clock runs; it is no fault. Later versions print no
training loss.
"""

from __future__ import annotations

import re

from floatscope_diagnostics.readers.fields import fields, measure
from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat, SingleLines
from floatscope_diagnostics.readers.piece import EVAL, START, TRAIN, Piece
from floatscope_diagnostics.readers.ranked import Ranked

_STEP = re.compile(r"^\s{0,8}step:(\d{1,12})/\d{1,12} (.{0,300}\b(?:train_time|step_avg):.{0,200})$")
_TRIAL = re.compile(r"^\s{0,8}trial:(\d{1,6})/\d{1,6}\b")
_NAMES = {
    "train_loss": "loss",
    "loss": "loss",
    "val_loss": "eval_loss",
    "step_avg": "step_time_s",
    "lr": "lr",
}


def certainty(head: Head) -> float:
    """A step's line; the source at the head says only that it may be one of these."""
    return 0.95 if head.bare_hits(_STEP) else 0.0


def read(text: str) -> Piece | None:
    """One line."""
    match = _STEP.match(text)
    if match is None:
        trial = _TRIAL.match(text)
        return Piece(kind=START) if trial is not None else None
    values: dict[str, float] = {}
    for name, word in fields(match[2], between=" ").items():
        value = measure(word)
        if value is None or name == "train_time" or (name == "step_avg" and value != value):
            continue
        values[_NAMES.get(name, name)] = value
    kind = EVAL if "eval_loss" in values and "loss" not in values else TRAIN
    return Piece(values, step=int(match[1]), kind=kind)


FORMAT = LineFormat(
    "modded_nanogpt", "modded-nanogpt output", certainty, lambda: Ranked(SingleLines(read)), alike=True
)
