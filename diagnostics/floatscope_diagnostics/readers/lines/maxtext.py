"""MaxText: ``completed step: 10, seconds: 2.1, TFLOP/s/device: 190.1, Tokens/s/device: 9000.0,
total_weights: 65536, loss: 8.4`` and ``eval metrics after step: 100, loss=8.2, total_weights=4096``."""

from __future__ import annotations

import re

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat, SingleLines
from floatscope_diagnostics.readers.pairs import COLON, EQUALS, pairs, renamed
from floatscope_diagnostics.readers.piece import EVAL, Piece

_LINE = re.compile(r"\bcompleted step: (\d{1,12}), ")
_EVAL = re.compile(r"\beval metrics after step: (\d{1,12}), ")
_OURS = {"seconds": "step_time_s", "total_weights": None, "perplexity": "perplexity"}


def certainty(head: Head) -> float:
    """Sure of a step's line."""
    return 0.95 if any(_LINE.search(x) and "loss: " in x for x in head.lines) else 0.0


def read(text: str) -> Piece | None:
    """A step or an evaluation."""
    at = _LINE.search(text)
    if at:
        values = renamed(pairs(text[at.end() :], COLON), _OURS)
        return Piece(values, step=int(at[1])) if values else None
    at = _EVAL.search(text)
    if at is None:
        return None
    found = renamed(pairs(text[at.end() :], EQUALS), _OURS)
    return Piece({f"eval_{k}": v for k, v in found.items()}, step=int(at[1]), kind=EVAL) if found else None


FORMAT = LineFormat("maxtext", "MaxText log", certainty, lambda: SingleLines(read))
