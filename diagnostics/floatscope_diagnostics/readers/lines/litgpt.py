"""LitGPT and lit-llama: ``iter 1760 | step 220: loss 1.59, iter time: 263.85 ms (optimizer.step)``,
``Epoch 1 | iter 8 step 1 | loss train: 1.6, val: n/a | iter time: 500 ms``, ``iter 4800: val loss 1.7``.

``iter`` counts micro-batches, ``step`` optimizer steps; an evaluation names only the first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat
from floatscope_diagnostics.readers.numbers import to_float
from floatscope_diagnostics.readers.piece import EVAL, RESUME, Piece
from floatscope_diagnostics.readers.ranked import Ranked

_TRAIN = re.compile(
    r"\biter (\d{1,12})(?: \| |:? )step (\d{1,12})"
    r"(?:: loss (\S{1,40}?),| \| loss train: (\S{1,40}?), val: (\S{1,40}?) \|)"
    r" iter time: {1,4}(\S{1,40}?) ?ms"
)
_EVALUATION = re.compile(r"\b(iter|step) (\d{1,12}): val loss (\S{1,40}?),? val time")
_RESUMED = re.compile(r"^Resuming training from \S")


def certainty(head: Head) -> float:
    """Both counters in one line."""
    return 0.95 if head.hits(_TRAIN) else 0.3 if head.hits(_EVALUATION) else 0.0


class LitGpt:
    """Remembers how many micro-batches make a step, and the validation loss printed last."""

    def __init__(self) -> None:
        self._micro_batches = 1
        self._validated: float | None = None

    def line(self, number: int, text: str) -> Iterable[Piece]:
        match = _TRAIN.search(text)
        if match is not None:
            return self._training(match)
        match = _EVALUATION.search(text)
        if match is not None:
            value = to_float(match[3])
            at = int(match[2]) // (self._micro_batches if match[1] == "iter" else 1)
            self._validated = value
            return () if value is None else (Piece({"eval_loss": value}, step=at, kind=EVAL),)
        if _RESUMED.match(text):
            return (Piece(kind=RESUME, note="continues from a checkpoint"),)
        return ()

    def end(self) -> Iterable[Piece]:
        return ()

    def _training(self, match: re.Match[str]) -> Iterable[Piece]:
        iteration, step = int(match[1]), int(match[2])
        if step > 0:
            self._micro_batches = max(1, round(iteration / step))
        values: dict[str, float] = {}
        loss, seconds = to_float(match[3] or match[4]), to_float(match[6])
        if loss is not None:
            values["loss"] = loss
        if seconds is not None:
            values["micro_batch_time_s"] = seconds / 1000
        yield Piece(values, step=step)
        validated = to_float(match[5] or "")
        if validated is not None and validated != self._validated:  # stands on every line until the next one
            self._validated = validated
            yield Piece({"eval_loss": validated}, step=step, kind=EVAL)


FORMAT = LineFormat("litgpt", "LitGPT output", certainty, lambda: Ranked(LitGpt()))
