"""Coqui TTS: a header ``--> STEP: 24/1000 -- GLOBAL_STEP: 25`` and one value a line, ``| > loss: 2.90
(2.99)``, of which the first is of now; ``--> EVAL PERFORMANCE`` and ``| > avg_loss: 2.71 (-0.10)`` with the
change in brackets. Models with a discriminator print loss_0, loss_1: they play against each other and keep
their names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import HELD, LineFormat
from floatscope_diagnostics.readers.numbers import NUMBER
from floatscope_diagnostics.readers.pairs import pairs, renamed
from floatscope_diagnostics.readers.piece import EVAL, Piece

_STEP = re.compile(r"--> (?:TIME: .{1,30} -- )?STEP: (-?\d{1,12})/\d{1,12} -- GLOBAL_STEP: (\d{1,12})")
_EVAL = re.compile(r"--> EVAL PERFORMANCE")
_VALUE = re.compile(rf"\| > ([A-Za-z]\w{{0,60}}):\s{{0,4}}({NUMBER})", re.I)
_OURS = {"current_lr": "lr", "step_time": "step_time_s", "loader_time": "data_time_s"}
_EVAL_OURS = {"avg_loader_time": None, "avg_step_time": None}


def certainty(head: Head) -> float:
    """Sure of the header."""
    return 0.95 if head.hits(_STEP) else 0.0


class Parser:
    """Knows the step of the block; an evaluation's own steps are passed over."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._last = 0
        self._evaluates = False

    def line(self, number: int, text: str) -> Iterable[Piece]:
        step = _STEP.search(text)
        if step:
            self._step, self._last, self._evaluates = int(step[2]), int(step[2]), False
            return HELD
        if _EVAL.search(text):
            self._evaluates = True
            return HELD
        if "> EVALUATION" in text or re.search(r"--> STEP: \d{1,12}\s{0,4}$", text):
            self._step = None
            return ()
        if self._evaluates:
            found = renamed(pairs(text, _VALUE), _EVAL_OURS)
            values = {f"eval_{k.removeprefix('avg_')}": v for k, v in found.items()}
            return (Piece(values, step=self._last, kind=EVAL),) if values else ()
        values = renamed(pairs(text, _VALUE), _OURS)
        return (Piece(values, step=self._step),) if values and self._step is not None else ()

    def end(self) -> Iterable[Piece]:
        return ()


FORMAT = LineFormat("coqui", "Coqui TTS output", certainty, Parser)
