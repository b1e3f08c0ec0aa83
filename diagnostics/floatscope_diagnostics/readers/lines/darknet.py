"""Darknet (YOLO v2 to v4): ``1200: 1.532101, 1.712345 avg loss, 0.001000 rate, 3.2 seconds, 76800 images,
...``.

The first number is the loss of the batch, the second its running mean.
"""

from __future__ import annotations

import re

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat, SingleLines
from floatscope_diagnostics.readers.numbers import NUMBER, to_float
from floatscope_diagnostics.readers.piece import EVAL, Piece

_LINE = re.compile(
    rf"(?:^|\s)(\d{{1,12}}): ({NUMBER}),? ({NUMBER}) avg(?: loss)?, ({NUMBER}) rate, ({NUMBER}) seconds", re.I
)
_MAP = re.compile(rf"\bmean average precision \((mAP@[\d.]{{1,6}})\) = ({NUMBER})", re.I)
_NAMES = ("loss", "loss_mean", "lr", "step_time_s")


def certainty(head: Head) -> float:
    """Sure of a line in that form."""
    return 0.95 if head.hits(_LINE) else 0.0


def read(text: str) -> Piece | None:
    """A batch or an evaluation."""
    at = _LINE.search(text)
    if at:
        found = {name: to_float(at[k]) for k, name in enumerate(_NAMES, start=2)}
        return Piece({k: v for k, v in found.items() if v is not None}, step=int(at[1]))
    score = _MAP.search(text)
    value = to_float(score[2]) if score else None
    return Piece({score[1]: value}, kind=EVAL) if score and value is not None else None


FORMAT = LineFormat("darknet", "Darknet output", certainty, lambda: SingleLines(read))
