"""verl: ``step:10 - actor/pg_loss:0.01 - actor/grad_norm:0.2 - critic/score/mean:0.4 - ...`` a line. All of
it is reinforcement learning: none of its losses need fall.
"""

from __future__ import annotations

import re

from floatscope_diagnostics.readers.fields import fields, measured
from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat, SingleLines
from floatscope_diagnostics.readers.piece import Piece
from floatscope_diagnostics.readers.ranked import Ranked

_STEP = re.compile(r"(?:^|\s)step:(\d{1,12}) - ((?:[a-z_]{1,40}/)[^\s:]{1,100}:.{1,20000})$")
_NUMPY = re.compile(r"np\.float\d{2}\(([^()]{1,40})\)")
_SFT = "train/loss"
_NOTE = (
    "reinforcement learning: its losses are kept under their names and not judged as losses that should fall"
)


def certainty(head: Head) -> float:
    """Names with slashes between dashes."""
    return 0.95 if head.hits(_STEP) else 0.0


def read(text: str) -> Piece | None:
    """One line; the supervised trainer prints ``step:10 - train/loss:1.2 - train/lr(1e-3):0.01``."""
    match = _STEP.search(text)
    if match is None:
        return None
    values = measured(fields(_NUMPY.sub(r"\1", match[2]), between=" - "), {})
    if _SFT in values or "val/loss" in values:
        names = {_SFT: "loss", "val/loss": "eval_loss", "train/grad_norm": "grad_norm"}
        return Piece({names.get(k, k): v for k, v in values.items()}, step=int(match[1]))
    return Piece(values, step=int(match[1]), note=_NOTE) if values else None


FORMAT = LineFormat("verl", "verl output", certainty, lambda: Ranked(SingleLines(read)), alike=True)
