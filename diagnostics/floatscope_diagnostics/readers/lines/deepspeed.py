"""DeepSpeed's own lines: ``[Rank 0] step=20, skipped=6, lr=[9.6e-06], mom=[...]`` and what the pipeline
engine prints, ``steps: 20 loss: 2.3 iter time (s): 0.4 samples/sec: 80``.

A job whose script prints nothing but these has no loss, only the learning rate and the skipped steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat
from floatscope_diagnostics.readers.lines.plain_text import PlainText
from floatscope_diagnostics.readers.numbers import to_float
from floatscope_diagnostics.readers.piece import Piece
from floatscope_diagnostics.readers.ranked import Ranked

_STEP = re.compile(r"\[Rank (\d{1,6})\] step=(\d{1,12}), skipped=(\d{1,12}), lr=\[([^\]]{0,2000})\]")
_PIPELINE = re.compile(r"\bsteps: (\d{1,12}) loss: {1,4}(\S{1,40}) iter time \(s\): {1,4}([\d.]{1,20})")
_TIMER = re.compile(
    r"\bepoch=\d{1,9}/micro_step=\d{1,12}/global_step=(\d{1,12}), "
    r".{0,200}\bCurrSamplesPerSec=(\S{1,40}?)(?:,|$)"
)
_LOGGER = re.compile(r"\[(?:INFO|WARNING|DEBUG|ERROR)\] \[[\w.]{1,60}:\d{1,6}:\w{1,60}\]")


def certainty(head: Head) -> float:
    """Less than any format of the script around it."""
    return 0.4 if head.hits(_STEP) or head.hits(_PIPELINE) else 0.15 if head.hits(_LOGGER) > 2 else 0.0


def read(text: str) -> Piece | None:
    """One of DeepSpeed's lines; also for the formats of scripts that run under it."""
    step = _STEP.search(text)
    if step is not None:
        if step[1] != "0":
            return None  # the same again from another rank
        values = {"skipped_steps": float(step[3])}
        rate = to_float(step[4].split(",")[0])
        if rate is not None:
            values["lr"] = rate
        return Piece(values, step=int(step[2]))
    pipeline = _PIPELINE.search(text)
    if pipeline is not None:
        found = {"loss": to_float(pipeline[2]), "step_time_s": to_float(pipeline[3])}
        values = {k: v for k, v in found.items() if v is not None}
        return Piece(values, step=int(pipeline[1]))
    timer = _TIMER.search(text)
    if timer is not None:
        speed = to_float(timer[2])
        return Piece({} if speed is None else {"samples_per_s": speed}, step=int(timer[1]))
    return None


class DeepSpeed:
    """DeepSpeed's lines, and in plain words what the script prints between them."""

    def __init__(self) -> None:
        self._words = PlainText()

    def line(self, number: int, text: str) -> Iterable[Piece]:
        piece = read(text)
        if piece is not None:
            return (piece,)
        return () if _LOGGER.search(text) else self._words.line(number, text)

    def end(self) -> Iterable[Piece]:
        return self._words.end()


FORMAT = LineFormat("deepspeed", "DeepSpeed output", certainty, lambda: Ranked(DeepSpeed()))
