"""MLX's fine-tuning: ``Iter 10: Train loss 2.345, Learning Rate 1.000e-05, It/sec 1.200, Tokens/sec 300.100,
Trained Tokens 2500, Peak mem 10.1 GB`` and ``Iter 200: Val loss 1.9, Val took 18.4s``."""

from __future__ import annotations

import re

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat, SingleLines
from floatscope_diagnostics.readers.numbers import to_float
from floatscope_diagnostics.readers.piece import EVAL, Piece
from floatscope_diagnostics.readers.ranked import Ranked

_LINE = re.compile(r"^\s{0,8}Iter (\d{1,12}): (Train|Val) loss (\S{1,40}?)(?:,|\s|$)(.{0,400})$")
_PAIR = re.compile(r"\b(Learning Rate|It/sec|Tokens/sec|Trained Tokens) (\S{1,40}?)(?:,|\s|$)")
_OURS = {"Learning Rate": "lr", "Tokens/sec": "tokens_per_s", "Trained Tokens": "tokens"}


def certainty(head: Head) -> float:
    """Its words."""
    return 0.95 if head.bare_hits(_LINE) else 0.0


def read(text: str) -> Piece | None:
    """One line."""
    match = _LINE.match(text)
    loss = to_float(match[3]) if match else None
    if match is None or loss is None:
        return None
    if match[2] == "Val":
        return Piece({"eval_loss": loss}, step=int(match[1]), kind=EVAL)
    values = {"loss": loss}
    for name, word in _PAIR.findall(match[4]):
        value = to_float(word)
        if value is None:
            continue
        if name == "It/sec":
            if value > 0:
                values["step_time_s"] = 1 / value
        else:
            values[_OURS[name]] = value
    return Piece(values, step=int(match[1]))


FORMAT = LineFormat(
    "mlx_lm", "MLX fine-tuning output", certainty, lambda: Ranked(SingleLines(read)), alike=True
)
