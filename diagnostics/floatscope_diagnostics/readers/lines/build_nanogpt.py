"""build-nanogpt: ``step 10 | loss: 10.5 | lr 9.2e-06 | norm: 4.0 | dt: 160.0ms | tok/sec: 3276832`` with
``validation loss: 10.9`` between them, and its short log, ``10 train 10.5``, ``0 val 10.9``, ``0 hella
0.25``.
"""

from __future__ import annotations

import re

from floatscope_diagnostics.readers.fields import fields, measured
from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat, SingleLines
from floatscope_diagnostics.readers.numbers import NUMBER, to_float
from floatscope_diagnostics.readers.piece import EVAL, Piece
from floatscope_diagnostics.readers.ranked import Ranked

_STEP = re.compile(r"^\s{0,8}step\s{1,8}(\d{1,12}) ?\| ?(loss:.{1,300}\bnorm:.{0,300}\bdt:.{0,200})", re.I)
_SHORT = re.compile(rf"^(\d{{1,12}}) (train|val|hella) ({NUMBER})\s*$")
_VALIDATION = re.compile(r"^\s{0,8}(validation loss|HellaSwag accuracy): (?:\d{1,9}/\d{1,9}=)?(\S{1,40})\s*$")
_OURS: dict[str, str | None] = {"norm": "grad_norm", "dt": "step_time_s", "tok/sec": "tokens_per_s"}
_EVAL_NAMES = {
    "val": "eval_loss",
    "hella": "hellaswag_accuracy",
    "validation loss": "eval_loss",
    "HellaSwag accuracy": "hellaswag_accuracy",
}


def certainty(head: Head) -> float:
    """Either kind of line, in numbers."""
    return 0.95 if head.bare_hits(_STEP) or head.bare_hits(_SHORT) > 2 else 0.0


def read(text: str) -> Piece | None:
    """One line. A validation is printed before the step of its number: it belongs to the steps done."""
    match = _STEP.match(text)
    if match is not None:
        return Piece(measured(fields(match[2]), _OURS), step=int(match[1]))
    match = _SHORT.match(text)
    if match is not None:
        value = to_float(match[3])
        if value is None:
            return None
        if match[2] == "train":
            return Piece({"loss": value}, step=int(match[1]))
        return Piece({_EVAL_NAMES[match[2]]: value}, step=int(match[1]), kind=EVAL)
    match = _VALIDATION.match(text)
    value = to_float(match[2]) if match else None
    if match is None or value is None:
        return None
    return Piece({_EVAL_NAMES[match[1]]: value}, kind=EVAL)


FORMAT = LineFormat(
    "build_nanogpt", "build-nanogpt output", certainty, lambda: Ranked(SingleLines(read)), alike=True
)
