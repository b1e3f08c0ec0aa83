"""YOLOv5 to v11 on a terminal: a header, then one bar an epoch, then the validation.

``     Epoch   gpu_mem       box       obj       cls    labels  img_size``
``     0/299     3.34G    0.1145   0.03412   0.0612        50       640: 100%|##| 400/400 [...]``
``               Class    Images    Labels         P         R    mAP@.5 mAP@.5:.95:``
``                 all      5000     36335       0.5       0.4       0.4       0.2``
The bar shows means since the epoch's start; the last drawing of an epoch is taken. What is optimized is the
sum of the printed losses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import HELD, LineFormat
from floatscope_diagnostics.readers.numbers import to_float
from floatscope_diagnostics.readers.piece import EVAL, Piece

_HEADER = re.compile(r"^\s{0,20}Epoch\s{1,20}(?:gpu_mem|GPU_mem)\s{1,20}(.{3,300})$")
_ROW = re.compile(r"^\s{0,20}(\d{1,9})/(\d{1,9})\s{1,20}[\d.]{1,12}[GM]?\s{1,20}([^:%|]{3,300})(?:: |$)")
_CLASSES = re.compile(r"^\s{0,20}Class\s{1,20}Images\s{1,20}(.{3,300}?):?\s{0,9}(?:\d{1,3}%.{0,400})?$")
_ALL = re.compile(r"^\s{0,20}all\s{1,20}\d{1,12}\s{1,20}(.{3,300})$")
_NO_LOSS = frozenset(("labels", "img_size", "instances", "size", "targets", "total"))
_NOTE = "loss is the sum of the printed losses, which is what YOLO optimizes"


def certainty(head: Head) -> float:
    """Sure of the header."""
    return 0.9 if head.hits(_HEADER) else 0.0


class Parser:
    """Knows the columns; holds the epoch's last drawing."""

    def __init__(self) -> None:
        self._columns: list[str] = []
        self._scores: list[str] = []
        self._held: Piece | None = None
        self._epoch: float | None = None

    def line(self, number: int, text: str) -> Iterable[Piece]:
        header = _HEADER.match(text)
        if header:
            self._columns = header[1].split()
            return HELD
        row = _ROW.match(text)
        if row and self._columns:
            out = () if self._epoch == float(row[1]) else self.end()
            self._epoch = float(row[1])
            self._held = self._train(row[3].split()) or self._held
            return out or HELD
        classes = _CLASSES.match(text)
        if classes:
            words = classes[1].replace("(B)", "").replace("Box(", "").split()
            self._scores = [n.strip("()") for n in words if n not in ("Labels", "Instances")]
            return HELD
        total = _ALL.match(text)
        return (*self.end(), *self._valid(total[1].split())) if total and self._scores else ()

    def end(self) -> tuple[Piece, ...]:
        held, self._held = self._held, None
        return () if held is None else (held,)

    def _train(self, words: list[str]) -> Piece | None:
        row = {n: to_float(w) for n, w in zip(self._columns, words, strict=False)}
        values = {n: v for n, v in row.items() if v is not None and n.lower() not in _NO_LOSS}
        if not values:
            return None
        return Piece({"loss": sum(values.values()), **values}, epoch=self._epoch, note=_NOTE)

    def _valid(self, words: list[str]) -> tuple[Piece, ...]:
        row = {n: to_float(w) for n, w in zip(self._scores, words[-len(self._scores) :], strict=False)}
        values = {n: v for n, v in row.items() if v is not None}
        return (Piece(values, epoch=self._epoch, kind=EVAL),) if values else ()


FORMAT = LineFormat("yolo", "YOLO training output", certainty, Parser)
