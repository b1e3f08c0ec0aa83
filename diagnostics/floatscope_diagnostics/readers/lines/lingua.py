"""Meta Lingua: ``0: INFO 24-11-01 10:00:00.0 - 0:01:00 - step: 10 acc: 0 loss: 9.2101 grad: 1.21e+00 flops:
3.9e+14 wps: 5.2e+04 iter: 0.1 data: 0.0 lr: 1.00e-05 mem: 50% pow: 600``. ``grad`` is the norm of the
gradient, ``iter`` and ``data`` are seconds.
"""

from __future__ import annotations

import re

from floatscope_diagnostics.readers.fields import measure
from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat, SingleLines
from floatscope_diagnostics.readers.piece import Piece
from floatscope_diagnostics.readers.ranked import Ranked

_LINE = re.compile(r"\bstep: (\d{1,12})\s{1,4}acc: \d{1,6}\s{1,4}(?=loss:)")
_PAIR = re.compile(r"\b([a-z_]{2,40}):\s{1,8}(\S{1,40})")
_OURS: dict[str, str | None] = {
    "grad": "grad_norm",
    "iter": "step_time_s",
    "data": "data_time_s",
    "wps": "words_per_s",
    "mem": None,
}


def certainty(head: Head) -> float:
    """Step, accumulation and loss in a row."""
    return 0.95 if head.hits(_LINE) else 0.0


def read(text: str) -> Piece | None:
    """One line."""
    match = _LINE.search(text)
    if match is None:
        return None
    values: dict[str, float] = {}
    for name, word in _PAIR.findall(text[match.end() :]):
        key = _OURS.get(name, name)
        value = measure(word) if key is not None else None
        if key is not None and value is not None:
            values.setdefault(key, value)
    return Piece(values, step=int(match[1])) if values else None


FORMAT = LineFormat("lingua", "Meta Lingua output", certainty, lambda: Ranked(SingleLines(read)), alike=True)
