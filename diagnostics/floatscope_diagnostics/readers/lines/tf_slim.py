"""Children of TensorFlow Slim (deeplab and others) with their own print: ``step 12972 <tab> loss = 0.428,
(1.019 sec/step)``."""

from __future__ import annotations

import re

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat, SingleLines
from floatscope_diagnostics.readers.numbers import NUMBER, to_float
from floatscope_diagnostics.readers.piece import Piece

_LINE = re.compile(
    rf"\bstep (\d{{1,12}})[ \t]{{1,8}}loss = ({NUMBER}),\s{{0,4}}\(([\d.]{{1,20}}) sec/step\)",
    re.I,
)


def certainty(head: Head) -> float:
    """Sure of a line in that form."""
    return 0.9 if head.hits(_LINE) else 0.0


def read(text: str) -> Piece | None:
    """Loss and seconds of a step."""
    at = _LINE.search(text)
    loss = to_float(at[2]) if at else None
    if at is None or loss is None:
        return None
    seconds = to_float(at[3])
    return Piece({"loss": loss} | ({} if seconds is None else {"step_time_s": seconds}), step=int(at[1]))


FORMAT = LineFormat("tf_slim", "TensorFlow Slim log", certainty, lambda: SingleLines(read))
