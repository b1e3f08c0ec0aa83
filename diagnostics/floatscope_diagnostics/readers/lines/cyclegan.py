"""CycleGAN and pix2pix ``loss_log.txt``.

``(epoch: 1, iters: 100, time: 0.480, data: 0.199) D_A: 0.280 G_A: 0.843 cycle_A: 2.123 ...``
``iters`` counts the images of an epoch. The networks play against each other: no loss here has to fall, and
all keep their names. The line ``=== Training Loss (date) ===`` is written whenever the program starts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import HELD, LineFormat
from floatscope_diagnostics.readers.pairs import COLON, pairs, renamed
from floatscope_diagnostics.readers.piece import RESUME, START, Piece

_LINE = re.compile(
    r"^\s{0,4}[\[(]?epoch: (\d{1,9}), iters: (\d{1,12})"
    r"(?:, time: (\d{1,12}(?:\.\d{1,12})?))?(?:, data: (\d{1,12}(?:\.\d{1,12})?))?[\])]"
)
_HEADER = re.compile(r"^=+ Training Loss \(.{1,60}\) =+")
_NOTE = "losses of networks that play against each other: not judged as a falling loss"
# time is a step's seconds per image; data the wait for the next batch
_OURS = {"loss": "gan/loss"}


def certainty(head: Head) -> float:
    """Sure of a line in that form."""
    return 0.95 if head.hits(_LINE) else 0.0


class Parser:
    """Tells a start from a continued run by the epoch that follows the header."""

    def __init__(self) -> None:
        self._header = False

    def line(self, number: int, text: str) -> Iterable[Piece]:
        if _HEADER.match(text):
            self._header = True
            return HELD
        at = _LINE.match(text)
        if at is None:
            return ()
        values = renamed(pairs(text[at.end() :], COLON), _OURS)
        if not values:
            return ()
        if at[3]:
            values["step_time_s"] = float(at[3])
        if at[4]:
            values["data_time_s"] = float(at[4])
        out = [Piece(values, epoch=int(at[1]), batch=int(at[2]), note=_NOTE)]
        if self._header:
            self._header = False
            out.insert(0, Piece(kind=START if int(at[1]) <= 1 else RESUME))
        return out

    def end(self) -> Iterable[Piece]:
        return ()


FORMAT = LineFormat("cyclegan", "CycleGAN / pix2pix loss log", certainty, Parser)
