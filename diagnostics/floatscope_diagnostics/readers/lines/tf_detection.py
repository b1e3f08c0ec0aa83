"""TensorFlow's object detection API (TF 2): ``INFO:tensorflow:Step 100 per-step time 0.312s`` and after it
a dict over several lines (``{'Loss/classification_loss': 0.31,`` ... ``'Loss/total_loss': 0.92,`` ...), or
``loss=0.92`` on the same line. An evaluation starts with ``Eval metrics at step 1000``, its values with a
plus sign.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import HELD, LineFormat
from floatscope_diagnostics.readers.numbers import NUMBER
from floatscope_diagnostics.readers.pairs import pairs, renamed
from floatscope_diagnostics.readers.piece import EVAL, Piece

_STEP = re.compile(r"\bStep (\d{1,12}) per-step time (\d{1,12}(?:\.\d{1,12})?)s(?: loss=(\S{1,40}))?")
_EVAL = re.compile(r"\bEval metrics at step (\d{1,12})\b")
_ENTRY = re.compile(rf"'((?:Loss/)?\w{{1,80}})': ({NUMBER})", re.I)
_METRIC = re.compile(rf"\+ ([A-Za-z][\w/@ ().]{{0,80}}): ({NUMBER})", re.I)
_OURS = {"loss/total_loss": "loss", "learning_rate": "lr", "steps_per_sec": None}


def certainty(head: Head) -> float:
    """Sure of a step's line."""
    return 0.96 if head.hits(_STEP) else 0.0


class Parser:
    """Knows the step that the entries of the dict belong to."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._evaluates = False

    def line(self, number: int, text: str) -> Iterable[Piece]:
        step = _STEP.search(text)
        if step:
            self._step, self._evaluates = int(step[1]), False
            found = renamed(pairs(f"'Loss/total_loss': {step[3]}", _ENTRY), _OURS) if step[3] else {}
            return (Piece({"step_time_s": float(step[2]), **found}, step=self._step),)
        evaluation = _EVAL.search(text)
        if evaluation:
            self._step, self._evaluates = int(evaluation[1]), True
            return HELD
        values = renamed(pairs(text, _METRIC if self._evaluates else _ENTRY), _OURS)
        if not values or self._step is None:
            return ()
        if self._evaluates:
            return (Piece({f"eval_{k}": v for k, v in values.items()}, step=self._step, kind=EVAL),)
        return (Piece(values, step=self._step),)

    def end(self) -> Iterable[Piece]:
        return ()


FORMAT = LineFormat("tf_detection", "TensorFlow object detection log", certainty, Parser)
