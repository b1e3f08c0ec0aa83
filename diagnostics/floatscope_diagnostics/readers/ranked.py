"""Parsers of lines that a launcher or a log driver has put something in front of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from floatscope_diagnostics.readers.line_format import HELD, LineParser
from floatscope_diagnostics.readers.line_prefix import split_prefix
from floatscope_diagnostics.readers.piece import Piece


class Ranked:
    """Takes rank and time off before a parser sees a line.

    keep: give the rank to the pieces; without it the format is one whose records are of the whole run,
    whichever rank prints them.
    """

    def __init__(self, parser: LineParser, *, keep: bool = False) -> None:
        self._parser = parser
        self._keep = keep

    def line(self, number: int, text: str) -> Iterable[Piece]:
        rank, rest = split_prefix(text)
        found = self._parser.line(number, rest)
        if rank is None or not self._keep or found is HELD:
            return found
        return tuple(replace(p, rank=rank) if p.rank is None else p for p in found)

    def end(self) -> Iterable[Piece]:
        return self._parser.end()
