"""What the choice of a reader may look at: the beginning of an input, and of a file also later parts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

SAMPLE_LINES = 4_000
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Head:
    """first: the first bytes of the unpacked input.

    later: bytes from further on in a plain file, empty where the input cannot be read twice; a log may begin
    with pages of environment, configuration or source code.
    """

    first: bytes
    later: bytes = b""

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """At most SAMPLE_LINES lines of both parts, without colour codes; carriage returns end a line too."""
        text = (self.first + b"\n" + self.later).decode("utf-8", "replace")
        return tuple(x for x in split_lines(text) if x.strip())[:SAMPLE_LINES]

    def share(self, pattern: re.Pattern[str]) -> float:
        """Share of the lines in which the pattern is found."""
        lines = self.lines
        return sum(1 for x in lines if pattern.search(x)) / len(lines) if lines else 0.0

    def hits(self, pattern: re.Pattern[str]) -> int:
        """Number of lines in which the pattern is found."""
        return sum(1 for x in self.lines if pattern.search(x))


def split_lines(text: str) -> list[str]:
    """Lines as a terminal shows them: progress bars end theirs with a carriage return; colours removed."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
