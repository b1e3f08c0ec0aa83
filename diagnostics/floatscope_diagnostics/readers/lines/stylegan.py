"""StyleGAN 1 to 3: ``tick 10    kimg 40.2     time 10m 20s   sec/tick 59.0   sec/kimg 14.7 ...  augment
0.012``.

It prints no loss; the score comes as ``{"results": {"fid50k_full": 13.2}, "metric": "fid50k_full", ...}`` or
``network-snapshot-000100   time 2m 10s   fid50k 13.2``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat
from floatscope_diagnostics.readers.numbers import NUMBER, to_float
from floatscope_diagnostics.readers.pairs import BLANK, pairs
from floatscope_diagnostics.readers.piece import EVAL, Piece

_TICK = re.compile(r"^\s{0,4}tick (\d{1,9})\s{1,8}kimg (\d{1,12}(?:\.\d{1,12})?)\s")
_SCORE = re.compile(rf'"((?:fid|kid|pr|is|ppl)\d{{0,3}}k?\w{{0,20}})": ({NUMBER})', re.I)
_SNAPSHOT = re.compile(rf"\b((?:fid|kid|ppl)\d{{0,3}}k?\w{{0,20}}) ({NUMBER})", re.I)
_NOTE = "networks that play against each other, and no loss in the log: not judged as a falling loss"


def certainty(head: Head) -> float:
    """Sure of a tick."""
    return 0.95 if head.hits(_TICK) else 0.0


class Parser:
    """Knows the tick that a score belongs to."""

    def __init__(self) -> None:
        self._tick: int | None = None

    def line(self, number: int, text: str) -> Iterable[Piece]:
        at = _TICK.match(text)
        if at:
            self._tick = int(at[1])
            found = dict(pairs(text[at.end() :], BLANK))
            values = {"kimg": float(at[2])} | {
                ours: found[theirs]
                for theirs, ours in (
                    ("sec/tick", "tick_time_s"),
                    ("sec/kimg", "kimg_time_s"),
                    ("augment", "augment"),
                )
                if theirs in found
            }
            return (Piece(values, step=self._tick, note=_NOTE),)
        score = _SCORE.search(text) or (_SNAPSHOT.search(text) if "network-snapshot" in text else None)
        value = to_float(score[2]) if score else None
        if score is None or value is None or self._tick is None:
            return ()
        return (Piece({score[1]: value}, step=self._tick, kind=EVAL),)

    def end(self) -> Iterable[Piece]:
        return ()


FORMAT = LineFormat("stylegan", "StyleGAN log", certainty, Parser)
