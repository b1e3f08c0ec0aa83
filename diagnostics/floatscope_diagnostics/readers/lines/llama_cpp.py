"""llama.cpp's training: ``train_opt_callback: iter= 1 sample=9/1000 sched=0.010000 loss=10.412304 dt=00:00:05
eta=01:00:00 |->``. The loss of iteration 0 is a placeholder, 0.000000, before the first batch."""

from __future__ import annotations

import re

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat, SingleLines
from floatscope_diagnostics.readers.numbers import NUMBER, to_float
from floatscope_diagnostics.readers.piece import Piece

_LINE = re.compile(
    rf"\btrain_opt_callback: iter={{1,2}}\s{{0,12}}(\d{{1,12}}) sample=\d{{1,12}}/\d{{1,12}} "
    rf"sched=({NUMBER}) loss=({NUMBER})"
)


def certainty(head: Head) -> float:
    """The name of the function that prints."""
    return 0.95 if head.hits(_LINE) else 0.0


def read(text: str) -> Piece | None:
    """One line."""
    match = _LINE.search(text)
    if match is None:
        return None
    found = {"loss": to_float(match[3]), "lr_multiplier": to_float(match[2])}
    values = {k: v for k, v in found.items() if v is not None}
    if match[1] == "0" and values.get("loss") == 0:
        return None
    return Piece(values, step=int(match[1])) if values else None


FORMAT = LineFormat("llama_cpp", "llama.cpp training output", certainty, lambda: SingleLines(read))
