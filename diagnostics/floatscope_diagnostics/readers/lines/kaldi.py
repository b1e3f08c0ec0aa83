"""Kaldi nnet3 and chain training.

``LOG (nnet3-chain-train[5.5]:PrintTotalStats():nnet-training.cc:...) Overall average objective function for
'output' is -0.0981 over 1.5e+06 frames.`` and, on the way, ``Average objective function for 'output' for
minibatches 0-99 is -0.12 over ...``. The objective is a log-likelihood that rises; ``loss`` is its negative.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat
from floatscope_diagnostics.readers.numbers import NUMBER, to_float
from floatscope_diagnostics.readers.piece import EVAL, Piece

_PART = re.compile(
    rf"\bAverage objective function for '([\w.-]{{1,60}})' for minibatches (\d{{1,12}})-(\d{{1,12}}) "
    rf"is ({NUMBER})",
    re.I,
)
_OVERALL = re.compile(
    rf"\bOverall average objective function for '([\w.-]{{1,60}})' is ({NUMBER})", re.I
)  # fmt: skip
_NOTE = "loss is the negative of Kaldi's objective for 'output', a log-likelihood that rises"


def certainty(head: Head) -> float:
    """Sure of the words."""
    return 0.95 if head.hits(_PART) or head.hits(_OVERALL) else 0.0


def _values(output: str, objective: float) -> dict[str, float]:
    return {"loss": -objective} if output == "output" else {f"objective_{output}": objective}


class Parser:
    """Counts the overall values where no minibatches are named (logs of several iterations, one after the
    other)."""

    def __init__(self) -> None:
        self._parts = False
        self._overall = -1

    def line(self, number: int, text: str) -> Iterable[Piece]:
        part = _PART.search(text)
        if part:
            value = to_float(part[4])
            self._parts = True
            return () if value is None else (Piece(_values(part[1], value), step=int(part[3]), note=_NOTE),)
        overall = _OVERALL.search(text)
        value = to_float(overall[2]) if overall else None
        if overall is None or value is None:
            return ()
        if "compute-prob" in text:
            values = {f"eval_{k}": v for k, v in _values(overall[1], value).items()}
            return (Piece(values, kind=EVAL, note=_NOTE),)
        if self._parts:  # the mean of what the minibatches said
            return ()
        self._overall += overall[1] == "output"
        return (Piece(_values(overall[1], value), step=max(self._overall, 0), note=_NOTE),)

    def end(self) -> Iterable[Piece]:
        return ()


FORMAT = LineFormat("kaldi", "Kaldi nnet3 log", certainty, Parser)
