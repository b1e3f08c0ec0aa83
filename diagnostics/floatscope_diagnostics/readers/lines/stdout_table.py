"""Tables of fastai and Chainer on a terminal: a header ``epoch  train_loss  valid_loss ...`` and its rows.

A value that is not there leaves its column blank (Chainer) or ``#na#`` (fastai). Chainer rewrites its
progress lines between the rows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import HELD, LineFormat
from floatscope_diagnostics.readers.numbers import to_float, to_int
from floatscope_diagnostics.readers.piece import START, Piece

_HEADER = re.compile(
    r"^\s{0,4}epoch\s{1,20}(?:\S{1,60}\s{1,20}){0,20}(?:train_loss|valid_loss|main/\S{0,40}loss)\b"
)
_ROW = re.compile(r"^\s{0,4}\d{1,12}\s")
_OURS = {
    "train_loss": "loss", "main/loss": "loss", "valid_loss": "eval_loss", "validation/main/loss": "eval_loss",
    "lr": "lr", "time": "", "elapsed_time": "", "iteration": "", "epoch": "",
}  # fmt: skip


def certainty(head: Head) -> float:
    """Sure of a header with a row below it."""
    seen = False
    for line in head.lines:
        if seen and _ROW.match(line):
            return 0.9
        seen = seen or _HEADER.match(line) is not None
    return 0.0


class Parser:
    """Knows the columns of the header it saw last."""

    def __init__(self) -> None:
        self._columns: list[tuple[str, int]] = []
        self._epoch = -1.0

    def line(self, number: int, text: str) -> Iterable[Piece]:
        if _HEADER.match(text):
            again = bool(self._columns)
            self._columns = [(m[0], m.start()) for m in re.finditer(r"\S+", text)]
            started, self._epoch = self._epoch >= 0 and again, -1.0
            return (Piece(kind=START),) if started else HELD
        if not self._columns or not _ROW.match(text):
            return ()
        row = {name: to_float(word) for name, word in self._cells(text)}
        values = {_OURS.get(name, name): v for name, v in row.items() if v is not None}
        values.pop("", None)
        step, epoch = row.get("iteration"), row.get("epoch")
        if not values or epoch is None or not math.isfinite(epoch):
            return ()
        self._epoch = epoch
        return (Piece(values, step=to_int(str(step)) if step is not None else None, epoch=epoch),)

    def end(self) -> Iterable[Piece]:
        return ()

    def _cells(self, text: str) -> list[tuple[str, str]]:
        """(column, text) of a row: by order if all are there, else by where the columns stand."""
        words = text.split()
        if len(words) == len(self._columns):
            return [(name, word) for (name, _), word in zip(self._columns, words, strict=True)]
        ends = [at for _, at in self._columns[1:]] + [len(text)]
        return [(name, text[at:end].strip()) for (name, at), end in zip(self._columns, ends, strict=True)]


FORMAT = LineFormat("stdout_table", "table of fastai or Chainer", certainty, Parser)
