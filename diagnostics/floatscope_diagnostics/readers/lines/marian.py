"""Marian NMT: ``[2020-01-01 10:00:00] Ep. 1 : Up. 500 : Sen. 32,000 : Cost 8.22 * 550,000 @ 1,100 after
550,000 : Time 20.12s : 26000.12 words/s : gNorm 1.23 : L.r. 1.0e-05`` and ``[valid] Ep. 1 : Up. 5000 :
cross-entropy : 60.2 : new best``.
"""

from __future__ import annotations

import re

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat, SingleLines
from floatscope_diagnostics.readers.numbers import NUMBER, to_float, to_int
from floatscope_diagnostics.readers.piece import EVAL, RESUME, TRAIN, Piece
from floatscope_diagnostics.readers.ranked import Ranked

_UPDATE = re.compile(r"\bEp\. (\d{1,6}) : Up\. (\d[\d,]{0,15}) : Sen\. .{1,60}? : Cost (\S{1,40})(.{0,400})$")
_VALID = re.compile(rf"\[valid\] Ep\. (\d{{1,6}}) : Up\. (\d[\d,]{{0,15}}) : ([\w-]{{1,40}}) : ({NUMBER})")
_MORE = re.compile(rf" : (?:(Time|gNorm|L\.r\.) ({NUMBER})(?=s?(?:\s|$))|({NUMBER}) (words/s))")
_TIME = re.compile(r" : Time ([\d.]{1,20})s\b")
_LOADING = re.compile(
    r"\[training\] (?:Loading|Training state).{0,200}\.progress\.yml|\bLoading Adam parameters\b"
)
_OURS = {"gNorm": "grad_norm", "L.r.": "lr", "words/s": "words_per_s"}
_LOSSES = ("cross-entropy", "ce-mean", "ce-mean-words", "ce-sum")


def certainty(head: Head) -> float:
    """Its abbreviations."""
    return 0.95 if head.hits(_UPDATE) else 0.0


def read(text: str) -> Piece | None:
    """One line. The time is of all updates since the last line, so it is no step time."""
    match = _UPDATE.search(text)
    if match is not None:
        values = {}
        cost = to_float(match[3])
        if cost is not None:
            values["loss"] = cost
        for name, word, word2, name2 in _MORE.findall(match[4]):
            value = to_float(word or word2)
            if value is not None and name != "Time":
                values[_OURS[name or name2]] = value
        return Piece(values, step=to_int(match[2]), epoch=float(match[1]), kind=TRAIN)
    match = _VALID.search(text)
    if match is not None:
        value = to_float(match[4])
        name = "eval_loss" if match[3] in _LOSSES else f"eval_{match[3]}"
        return None if value is None else Piece({name: value}, step=to_int(match[2]), kind=EVAL)
    if _LOADING.search(text):
        return Piece(kind=RESUME, note="continues from a checkpoint")
    return None


FORMAT = LineFormat("marian", "Marian NMT output", certainty, lambda: Ranked(SingleLines(read)), alike=True)
