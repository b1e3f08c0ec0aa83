"""A line that was understood once, as a pattern: lines of the same make are then read without looking for
names again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from floatscope_diagnostics.readers.words import VALUE

MOST = 8
MAX_LEARNT = 200  # of one log; a log whose lines differ more than this is read line by line
_PIECES = re.compile(r"\s+|\d[\d.,:]*|[^\s\d]+")


@dataclass(frozen=True)
class Slot:
    """A number of the line. name: of a position or value.  factor: of its unit."""

    start: int
    end: int
    name: str
    factor: float


class Template:
    """The text of one line with its numbers open. slots: in their order in the line."""

    def __init__(self, text: str, slots: Sequence[Slot]) -> None:
        parts = ["^"]
        at = 0
        for slot in slots:
            parts.append(_literal(text[at : slot.start]))
            parts.append(f"({VALUE})")
            at = slot.end
        parts.append(_literal(text[at:]) + "$")
        self.slots = tuple(slots)
        self._pattern = re.compile("".join(parts), re.I)

    def read(self, text: str) -> tuple[str, ...] | None:
        """The numbers of a line of this make, else None."""
        match = self._pattern.match(text)
        return None if match is None else match.groups()


def _literal(text: str) -> str:
    """A pattern of text in which blanks and digits may differ."""
    out = []
    for piece in _PIECES.findall(text):
        if piece[0].isspace():
            out.append(r"\s{1,40}")
        elif piece[0].isdigit():
            out.append(r"\d[\d.,:]{0,40}")
        else:
            out.append(re.escape(piece))
    return "".join(out)
