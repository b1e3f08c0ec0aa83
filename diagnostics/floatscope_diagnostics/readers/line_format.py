"""A format of text logs: how sure it is of an input, and what it makes of a line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.piece import Piece


class _Held(tuple[Piece, ...]):
    """No pieces yet, and yet a line that was understood."""

    __slots__ = ()


HELD = _Held()


class LineParser(Protocol):
    """Reads lines in order; may remember earlier ones."""

    def line(self, number: int, text: str) -> Iterable[Piece]:
        """The pieces that ``text`` completes; nothing if the line holds no training values; HELD if it does
        and they come later."""
        ...

    def end(self) -> Iterable[Piece]:
        """What was still held back at the end of the input."""
        ...


@dataclass(frozen=True)
class LineFormat:
    """name: as in ``--format``.  title: for people.  certainty: 0 (not mine) to 1 of an input's head.

    parser: makes a fresh parser.  alike: whether a record depends on its own line alone, so that of a long
    log lines that differ only in their numbers may be read without the parser; always so for SingleLines.
    """

    name: str
    title: str
    certainty: Callable[[Head], float]
    parser: Callable[[], LineParser]
    alike: bool = False


class SingleLines:
    """Parser of a format whose lines each stand for themselves. read: a line's piece, or None."""

    def __init__(self, read: Callable[[str], Piece | None]) -> None:
        self._read = read

    def line(self, number: int, text: str) -> Iterable[Piece]:
        piece = self._read(text)
        return () if piece is None else (piece,)

    def end(self) -> Iterable[Piece]:
        return ()
