"""Lines of a loss scaler and nothing else: ``Gradient overflow. Skipping step, loss scaler 0 reducing loss
scale to 32768.0``. Each is one skipped step; how many steps went well between them the log does not say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat
from floatscope_diagnostics.readers.numbers import NUMBER, to_float
from floatscope_diagnostics.readers.piece import Piece
from floatscope_diagnostics.readers.ranked import Ranked

_LINE = re.compile(
    r"Gradient overflow\.\s{1,4}Skipping step, (?:loss scaler (\d{1,4}) )?reducing loss scale to (\S{1,400})"
)
_LOSS = re.compile(rf"loss(?! ?scale)[\w/]{{0,20}}\W{{0,4}}{NUMBER}", re.I)
_ONLY = "only lines of the loss scaler: each counts as one skipped step; the steps between are not in the log"


def certainty(head: Head) -> float:
    """Only where no line has a loss: else these lines are events of another format."""
    return 0.6 if head.hits(_LINE) and not head.hits(_LOSS) else 0.0


class Scaler:
    """Counts the skipped steps."""

    def __init__(self) -> None:
        self._skipped = 0

    def line(self, number: int, text: str) -> Iterable[Piece]:
        match = _LINE.search(text)
        scale = to_float(match[2]) if match else None
        if match is None or scale is None:
            return ()
        if match[1] not in (None, "0"):
            return (Piece({f"loss_scale_{match[1]}": scale}),)
        self._skipped += 1
        return (Piece({"loss_scale": scale, "skipped_steps": float(self._skipped)}, note=_ONLY),)

    def end(self) -> Iterable[Piece]:
        return ()


FORMAT = LineFormat("apex_scaler", "loss scaler lines", certainty, lambda: Ranked(Scaler()))
