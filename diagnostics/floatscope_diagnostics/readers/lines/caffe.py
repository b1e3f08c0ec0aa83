"""Caffe (glog): ``I0425 10:13:04.672637  9167 solver.cpp:65] Iteration 200, loss = 6.55``.

The rate stands on another line of the same iteration, before or after. ``Train net output`` repeats the loss
and adds those of single outputs; ``Test net output`` follows ``Iteration 0, Testing net (#0)``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import HELD, LineFormat
from floatscope_diagnostics.readers.numbers import NUMBER, to_float
from floatscope_diagnostics.readers.piece import EVAL, Piece

_GLOG = re.compile(r"^[IWEF]\d{4} [\d:.]{8,20}\s{1,8}\d{1,12} [\w.]{1,60}:\d{1,9}\] ")
_ITERATION = re.compile(
    rf"\bIteration (\d{{1,12}})\b[^,]{{0,80}}(?:, [^,=]{{0,80}}\))?, (loss|lr) = ({NUMBER})", re.I
)
_TESTING = re.compile(r"\bIteration (\d{1,12}), Testing net")
_OUTPUT = re.compile(rf"\b(Train|Test) net output #\d{{1,6}}: (\S{{1,80}}) = ({NUMBER})", re.I)


def certainty(head: Head) -> float:
    """Sure of an iteration's line; without the prefix of glog only beside a net's output."""
    if not head.hits(_ITERATION):
        return 0.0
    return 0.95 if head.hits(_GLOG) else 0.7 if head.hits(_OUTPUT) else 0.0


class Parser:
    """Remembers the iteration that outputs belong to."""

    def __init__(self) -> None:
        self._step: int | None = None

    def line(self, number: int, text: str) -> Iterable[Piece]:
        testing = _TESTING.search(text)
        if testing:
            self._step = int(testing[1])
            return HELD
        at = _ITERATION.search(text)
        if at:
            self._step = int(at[1])
            value = to_float(at[3])
            return (Piece({at[2].lower(): value}, step=self._step),) if value is not None else ()
        output = _OUTPUT.search(text)
        value = to_float(output[3]) if output else None
        if output is None or value is None:
            return ()
        if output[1] == "Test":
            return (Piece({f"eval_{output[2]}": value}, step=self._step, kind=EVAL),)
        # "loss" here is of the last batch alone; the line of the iteration has the average over average_loss
        name = "train_output_loss" if output[2] == "loss" else output[2]
        return (Piece({name: value}, step=self._step),)

    def end(self) -> Iterable[Piece]:
        return ()


FORMAT = LineFormat("caffe", "Caffe log", certainty, Parser)
