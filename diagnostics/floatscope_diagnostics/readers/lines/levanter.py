"""Levanter: ``... INFO :: Progress on:train 1.10kit/10.0kit rate:2.1it/s remaining:1:20:00 elapsed:08:50
postfix:loss=3.21``. The step is rounded to three digits: of several lines of one step the last counts."""

from __future__ import annotations

import re

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat, SingleLines
from floatscope_diagnostics.readers.numbers import to_float
from floatscope_diagnostics.readers.piece import EVAL, Piece
from floatscope_diagnostics.readers.ranked import Ranked

_LINE = re.compile(
    r"\bProgress on:(train|eval) {1,4}([\d.]{1,12})(k|M)?it/\S{1,20} "
    r".{0,200}\bpostfix:loss=(\S{1,40}?)(?:,|\s|$)"
)
_FACTORS = {"": 1, "k": 1_000, "M": 1_000_000}
_ROUNDED = "steps are printed with three digits"


def certainty(head: Head) -> float:
    """The name of its bar."""
    return 0.95 if head.hits(_LINE) else 0.0


def read(text: str) -> Piece | None:
    """One line; an evaluation's bar counts its own batches."""
    match = _LINE.search(text)
    count, loss = (to_float(match[2]), to_float(match[4])) if match else (None, None)
    if match is None or count is None or loss is None:
        return None
    if match[1] == "eval":
        return Piece({"eval_loss": loss}, kind=EVAL)
    step = round(count * _FACTORS[match[3] or ""])
    return Piece({"loss": loss}, step=step, note=_ROUNDED if match[3] else None)


FORMAT = LineFormat("levanter", "Levanter output", certainty, lambda: Ranked(SingleLines(read)))
