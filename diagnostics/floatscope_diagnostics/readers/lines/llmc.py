"""llm.c: ``step 10/1000 | loss 3.2 (+0.1z)| norm 0.9 (nanz)| lr 1.0e-04 | 120.3 ms | ...`` with
``val loss 3.3`` between them, and its main.log, ``s:10 trl:3.2 lr:0.0001 norm:0.9``, ``s:250 tel:3.3``.

"nanz" is a z-score before there are enough values, no fault.
"""

from __future__ import annotations

import re

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat, SingleLines
from floatscope_diagnostics.readers.numbers import to_float
from floatscope_diagnostics.readers.piece import EVAL, Piece
from floatscope_diagnostics.readers.ranked import Ranked

_STEP = re.compile(
    r"^\s{0,8}step\s{1,8}(\d{1,12})\s?/\s?\d{1,12} ?\| "
    r"(?:train )?loss (\S{1,40})\s?(?:\([^)]{0,20}z\))?\s?\| "
    r"norm (\S{1,40})\s?(?:\([^)]{0,20}z\))?\s?\|(?: lr (\S{1,40}) \|)?"
    r"(?: (\S{1,40}) ms)?(?: \| (\S{1,20})% bf16 MFU)?"
)
_SIMPLE = re.compile(r"^\s{0,8}step (\d{1,12}): train loss (\S{1,40}) \(took (\S{1,40}) ms\)")
_VALIDATION = re.compile(r"^\s{0,8}val loss:? (\S{1,40})\s*$")
_HELLASWAG = re.compile(r"^\s{0,8}HellaSwag: \d{1,9}/\d{1,9} = (\S{1,40})\s*$")
_SHORT = re.compile(r"^s:(\d{1,12}) (trl|tel|eval):(\S{1,40})(?: lr:(\S{1,40}))?(?: norm:(\S{1,40}))?\s*$")


def certainty(head: Head) -> float:
    """Either kind of line."""
    return 0.95 if head.bare_hits(_STEP) or head.bare_hits(_SIMPLE) or head.bare_hits(_SHORT) > 1 else 0.0


def read(text: str) -> Piece | None:
    """One line."""
    match = _SHORT.match(text)
    if match is not None:
        if match[2] == "trl":
            return _piece(match[1], loss=match[3], lr=match[4], grad_norm=match[5])
        return _piece(
            match[1], kind=EVAL, **{"eval_loss" if match[2] == "tel" else "hellaswag_accuracy": match[3]}
        )
    match = _STEP.match(text)
    if match is not None:
        return _piece(match[1], loss=match[2], grad_norm=match[3], lr=match[4], ms=match[5], mfu_pct=match[6])
    match = _SIMPLE.match(text)
    if match is not None:
        return _piece(match[1], loss=match[2], ms=match[3])
    match = _VALIDATION.match(text)
    if match is not None:
        return _piece(None, kind=EVAL, eval_loss=match[1])
    match = _HELLASWAG.match(text)
    return None if match is None else _piece(None, kind=EVAL, hellaswag_accuracy=match[1])


def _piece(step: str | None, *, kind: str = "train", **texts: str | None) -> Piece | None:
    values: dict[str, float] = {}
    for name, text in texts.items():
        value = None if text is None else to_float(text)
        if value is None or (name == "mfu_pct" and value < 0):
            continue
        values["step_time_s" if name == "ms" else name] = value / 1000 if name == "ms" else value
    return Piece(values, step=None if step is None else int(step), kind=kind) if values else None


FORMAT = LineFormat("llmc", "llm.c output", certainty, lambda: Ranked(SingleLines(read)), alike=True)
