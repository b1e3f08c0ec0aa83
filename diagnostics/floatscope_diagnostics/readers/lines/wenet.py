"""WeNet: ``... DEBUG TRAIN Batch 0/4000 loss 90.7 loss_att 89.0 loss_ctc 94.6 lr 0.00002 rank 0``.

``0/4000`` is epoch 0, batch 4000. Validation prints ``CV Batch`` lines with the mean so far as ``history
loss`` and at its end ``Epoch 0 CV info cv_loss 12.3``; only the end is taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import HELD, LineFormat
from floatscope_diagnostics.readers.numbers import to_int
from floatscope_diagnostics.readers.pairs import BLANK, pairs, renamed
from floatscope_diagnostics.readers.piece import EVAL, Piece

_LINE = re.compile(r"\b(TRAIN|CV)\b[^\n]{0,80}?\bBatch (\d{1,9})/(\d{1,12})\s")
_CV_END = re.compile(r"\bEpoch (\d{1,9}) CV info cv_loss (\S{1,40})")
_OURS = {"batch": None}


def certainty(head: Head) -> float:
    """Sure of a batch line with a loss in words."""
    return 0.95 if any(_LINE.search(x) and " loss " in x for x in head.lines) else 0.0


class Parser:
    """Keeps the validation's mean so far until the validation ends."""

    def __init__(self) -> None:
        self._history: Piece | None = None

    def line(self, number: int, text: str) -> Iterable[Piece]:
        end = _CV_END.search(text)
        if end:
            self._history = None
            values = renamed(pairs(text[end.start() :], BLANK), {"cv_loss": "eval_loss", "epoch": None})
            return (Piece(values, epoch=int(end[1]), kind=EVAL),) if values else ()
        at = _LINE.search(text)
        if at is None:
            return ()
        values = renamed(pairs(text[at.end() :], BLANK), _OURS)
        rank = to_int(str(values.pop("rank", "")))
        epoch = int(at[2])
        if at[1] == "CV":
            mean = re.search(r"history loss (\S{1,40})", text)
            found = renamed(pairs(f"eval_loss {mean[1]}", BLANK), {}) if mean else {}
            self._history = Piece(found, epoch=epoch, kind=EVAL) if found else self._history
            return HELD
        piece = Piece(values, epoch=epoch, batch=int(at[3]), rank=rank)
        return (*self.end(), piece) if values else ()

    def end(self) -> Iterable[Piece]:
        held, self._history = self._history, None
        return (held,) if held is not None else ()


FORMAT = LineFormat("wenet", "WeNet train.log", certainty, Parser)
