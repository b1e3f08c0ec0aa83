"""MosaicML Composer and llm-foundry: ``[batch=10/4800]:`` and below it one value a line,
``	 Train loss/train/total: 11.9``, ``	 Eval metrics/eval/LanguageCrossEntropy: 3.2``."""

from __future__ import annotations

import re
from collections.abc import Iterable

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import HELD, LineFormat
from floatscope_diagnostics.readers.numbers import NUMBER, to_float
from floatscope_diagnostics.readers.piece import EVAL, TRAIN, Piece
from floatscope_diagnostics.readers.ranked import Ranked

_HEADER = re.compile(
    r"^\s{0,8}(?:\[epoch=(\d{1,6})(?:/\d{1,6})?\])?\[(Eval )?(batch|iteration)=(\d{1,12})"
    r"(?:/(\d{1,12}))?\]:\s*$"
)
_VALUE = re.compile(rf"^\s{{1,8}}(Train|Eval) ([A-Za-z][\w./ -]{{0,120}}): ({NUMBER})\s*$", re.I)
_OURS: dict[str, str | None] = {
    "loss/train/total": "loss",
    "l2_norm/grad/global": "grad_norm",
    "time/token": "tokens",
    "time/tokens": "tokens",
}
_LEFT_OUT = ("time/", "memory/", "trainer/")
_EVAL_LOSS = re.compile(r"(?:^|/)(?:LanguageCrossEntropy|CrossEntropy|MaskedAccuracyLoss|loss)$")


def certainty(head: Head) -> float:
    """A header between brackets with a colon, and its values."""
    return 0.95 if head.bare_hits(_HEADER) and head.bare_hits(_VALUE) else 0.0


class Blocks:
    """Remembers the header. Batches are of the run where it names no epoch."""

    def __init__(self) -> None:
        self._where: Piece | None = None
        self._losses: dict[str, str] = {}

    def line(self, number: int, text: str) -> Iterable[Piece]:
        header = _HEADER.match(text)
        if header is not None:
            self._where = _position(header)
            return HELD
        match = _VALUE.match(text) if self._where is not None else None
        value = to_float(match[3]) if match else None
        if match is None or value is None or self._where is None:
            return ()
        kind = EVAL if match[1] == "Eval" else TRAIN
        name = _name(match[2], kind)
        if name is None:
            return HELD
        at = self._where
        return (
            Piece({name: value}, step=at.step, epoch=at.epoch, batch=at.batch, batches=at.batches, kind=kind),
        )

    def end(self) -> Iterable[Piece]:
        return ()


def _position(header: re.Match[str]) -> Piece:
    if header[2]:
        return Piece()  # an evaluation's own batches
    if header[1] is None:
        return Piece(step=int(header[4]))
    return Piece(epoch=float(header[1]), batch=int(header[4]), batches=int(header[5]) if header[5] else None)


def _name(name: str, kind: str) -> str | None:
    ours = _OURS.get(name, name)
    if ours != name:
        return ours
    if name.startswith("lr-") and name.endswith("group0"):
        return "lr"
    if name.startswith(_LEFT_OUT):
        return None
    return "eval_loss" if kind == EVAL and _EVAL_LOSS.search(name) else name


FORMAT = LineFormat("composer", "MosaicML Composer output", certainty, lambda: Ranked(Blocks()))
