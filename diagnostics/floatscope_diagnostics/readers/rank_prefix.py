"""Launchers put the rank in front of each line: torchrun, srun, mpirun, Ray."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from floatscope_diagnostics.readers.line_format import HELD, LineParser
from floatscope_diagnostics.readers.piece import Piece

_PREFIX = re.compile(
    r"^\s{0,8}(?:\[(?:rank|default|Rank )\s?(\d{1,6})\]:?|\[\d{1,4},(\d{1,6})\]<std(?:out|err)>:"
    r"|(?:worker-|rank)(\d{1,6}):|\([A-Z][\w.:]{0,60} pid=\d{1,9}(?:, ip=[\d.]{7,15})?\)|(\d{1,5}):(?=\s))\s?"
)


def split_rank(text: str) -> tuple[int | None, str]:
    """The rank in front of a line, None where there is none, and the rest of the line.

    Knows ``[rank3]:``, ``[default3]:``, ``[1,3]<stdout>:``, ``worker-3:``, ``(Actor pid=9)``, ``3: ``.
    """
    match = _PREFIX.match(text)
    if match is None:
        return None, text
    rank = next((x for x in match.groups() if x is not None), None)
    return None if rank is None else int(rank), text[match.end() :]


class Ranked:
    """Takes the launcher's prefix off before a parser sees a line.

    keep: give the rank to the pieces; without it the format is one whose records are of the whole run,
    whichever rank prints them.
    """

    def __init__(self, parser: LineParser, *, keep: bool = False) -> None:
        self._parser = parser
        self._keep = keep

    def line(self, number: int, text: str) -> Iterable[Piece]:
        rank, rest = split_rank(text)
        found = self._parser.line(number, rest)
        if rank is None or not self._keep or found is HELD:
            return found
        return tuple(replace(p, rank=rank) if p.rank is None else p for p in found)

    def end(self) -> Iterable[Piece]:
        return self._parser.end()
