"""MindSpore and MindFormers: ``epoch: 1 step: 100, loss is 2.3``, ``Train epoch time: 1000.0 ms, per step
time: 10.0 ms`` and ``{ Epoch:[ 1/ 10], step:[ 10/ 1000], loss: 11.5, per_step_time: 1000ms, lr: 1e-05,
overflow cond: False, loss_scale: 65536.0, global_norm: [2.3], ...}``. The step counts inside of the
epoch.
"""

from __future__ import annotations

import re

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat, SingleLines
from floatscope_diagnostics.readers.numbers import NUMBER, to_float
from floatscope_diagnostics.readers.piece import EVAL, Piece
from floatscope_diagnostics.readers.ranked import Ranked

_SHORT = re.compile(
    rf"\bepoch: (\d{{1,9}})(?:/\d{{1,9}})?,? step: (\d{{1,12}})(?:/(\d{{1,12}}))?, loss is \[?({NUMBER})",
    re.I,
)
_FORMERS = re.compile(
    r"\{ ?Epoch:\[\s{0,8}(\d{1,9})/\s{0,8}\d{1,9}\], step:\[\s{0,8}(\d{1,12})/\s{0,8}(\d{1,12})\], (?=loss: )"
)
_PAIR = re.compile(rf"\b([a-z_]{{2,40}}): \[?({NUMBER}|[\d.]{{1,20}}(?=ms\b))(ms\b)?", re.I)
_OURS = {"global_norm": "grad_norm", "per_step_time": "step_time_s"}


def certainty(head: Head) -> float:
    """Their words."""
    return 0.95 if head.hits(_SHORT) or head.hits(_FORMERS) else 0.0


def read(text: str) -> Piece | None:
    """One line."""
    match = _SHORT.search(text)
    if match is not None:
        loss = to_float(match[4])
        batches = int(match[3]) if match[3] else None
        if loss is None:
            return None
        return Piece({"loss": loss}, epoch=float(match[1]), batch=int(match[2]), batches=batches)
    match = _FORMERS.search(text)
    if match is None:
        return None
    values: dict[str, float] = {}
    for name, word, milliseconds in _PAIR.findall(text[match.end() :]):
        value = to_float(word)
        if value is not None:
            values.setdefault(_OURS.get(name, name), value / 1000 if milliseconds else value)
    kind = "train" if "loss" in values else EVAL
    return Piece(values, epoch=float(match[1]), batch=int(match[2]), batches=int(match[3]), kind=kind)


FORMAT = LineFormat("mindspore", "MindSpore output", certainty, lambda: Ranked(SingleLines(read)), alike=True)
