"""OLMo and OLMo-core: ``... INFO [step=10/1000,epoch=0]`` and below it one value a line,
``    train/CrossEntropyLoss=11.2``, ``    optim/total_grad_norm=1.4``."""

from __future__ import annotations

import re
from collections.abc import Iterable

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import HELD, LineFormat
from floatscope_diagnostics.readers.numbers import NUMBER, to_float
from floatscope_diagnostics.readers.piece import EVAL, TRAIN, Piece
from floatscope_diagnostics.readers.ranked import Ranked

_HEADER = re.compile(r"\[step=(\d[\d,]{0,15})(?:/\d[\d,]{0,15})?(?:,[^\]]{1,200})?\]\s*$")
_VALUE = re.compile(rf"^\s{{2,16}}([A-Za-z][\w./ ()@-]{{0,120}}?)=({NUMBER})\s*$", re.I)
_OURS = {
    "train/crossentropyloss": "loss",
    "train/ce loss": "loss",
    "train/loss": "loss",
    "optim/total_grad_norm": "grad_norm",
    "optim/total grad norm": "grad_norm",
    "optim/learning_rate_group0": "lr",
    "optim/lr (group 0)": "lr",
    "optim/lr": "lr",
    "throughput/total_tokens": "tokens",
    "throughput/total tokens": "tokens",
}
_EVAL_LOSS = re.compile(r"^eval/.{0,120}(?:crossentropyloss|ce loss)$")


def certainty(head: Head) -> float:
    """Headers, and the values that follow them."""
    return 0.95 if head.bare_hits(_HEADER) and head.bare_hits(_VALUE) else 0.0


class Blocks:
    """Remembers the step of the last header."""

    def __init__(self) -> None:
        self._step: int | None = None

    def line(self, number: int, text: str) -> Iterable[Piece]:
        header = _HEADER.search(text)
        if header is not None:
            self._step = int(header[1].replace(",", ""))
            return HELD
        match = _VALUE.match(text) if self._step is not None else None
        value = to_float(match[2]) if match else None
        if match is None or value is None:
            return ()
        name = match[1]
        if name.lower().startswith("eval/"):
            ours = "eval_loss" if _EVAL_LOSS.match(name.lower()) else name
            return (Piece({ours: value}, step=self._step, kind=EVAL),)
        return (Piece({_OURS.get(name.lower(), name): value}, step=self._step, kind=TRAIN),)

    def end(self) -> Iterable[Piece]:
        return ()


FORMAT = LineFormat("olmo", "OLMo output", certainty, lambda: Ranked(Blocks()))
