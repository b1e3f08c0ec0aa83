"""spaCy 3: a table under ``E    #       LOSS TOK2VEC  LOSS NER  ENTS_F  ENTS_P  ENTS_R  SCORE``.

Each loss is the sum since the last row. One loss is taken as the loss; several keep their names, without
the first row, which is the sum of one batch only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import HELD, LineFormat
from floatscope_diagnostics.readers.numbers import to_float, to_int
from floatscope_diagnostics.readers.piece import Piece

_HEADER = re.compile(r"^\s{0,4}E\s{1,8}#\s{1,12}(LOSS .{1,300})$")
_NOTE = "a loss of spaCy's table is the sum since the row before; the first row (one batch) is left out"


def certainty(head: Head) -> float:
    """Sure of the header."""
    return 0.95 if head.hits(_HEADER) else 0.0


class Parser:
    """Knows the columns."""

    def __init__(self) -> None:
        self._columns: list[str] = []

    def line(self, number: int, text: str) -> Iterable[Piece]:
        header = _HEADER.match(text)
        if header:
            names = [n for n in re.split(r"\s{2,}", header[1].strip()) if n]
            self._columns = [n.lower().replace(" ", "_") for n in names]
            return HELD
        words = text.split()
        if not self._columns or len(words) != len(self._columns) + 2:
            return ()
        epoch, step = to_int(words[0]), to_int(words[1])
        if epoch is None or step is None:
            return HELD if set(words[0]) == {"-"} else ()
        found = {n: to_float(w) for n, w in zip(self._columns, words[2:], strict=True)}
        values = {n: v for n, v in found.items() if v is not None}
        losses = [n for n in values if n.startswith("loss_")]
        if len(losses) == 1:
            values["loss"] = values.pop(losses[0])
        if step == 0:
            values = {n: v for n, v in values.items() if not n.startswith("loss")}
        return (Piece(values, step=step, epoch=epoch, note=_NOTE),) if values else HELD

    def end(self) -> Iterable[Piece]:
        return ()


FORMAT = LineFormat("spacy", "spaCy training table", certainty, Parser)
