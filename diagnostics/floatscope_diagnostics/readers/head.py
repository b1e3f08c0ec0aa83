"""What the choice of a reader may look at: the beginning of an input, and of a file also later parts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from floatscope_diagnostics.readers.line_prefix import split_prefix
from floatscope_diagnostics.readers.source_code import without_source

SAMPLE_LINES = 4_000
MAX_LINE_CHARS = 1 << 16
BRIEF_CHARS = 4 << 10  # of a line; enough to know it by, a record of a log is shorter
WHOLE_CHARS = 1 << 17  # longer lines are whole within so many characters: all of a first look
WHOLE_BYTES = 1 << 16  # a part of this size does not end with the input
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
        """Lines of both parts, without colour codes, NUL bytes, blank lines and source code at the
        beginning; carriage returns end a line too. The first lines and the last ones, where there are more
        than SAMPLE_LINES."""
        first = self.first.removeprefix(b"\xef\xbb\xbf")
        if len(first) >= WHOLE_BYTES and b"\n" in first:
            first = first[: first.rindex(b"\n")]  # the last line may be cut
        text = (first + b"\n" + self.later).replace(b"\x00", b"").decode("utf-8", "replace")
        numbered = ((k, x) for k, x in enumerate(split_lines(text)) if x.strip())
        lines = _bounded([x for _, x in without_source(numbered)])
        half = SAMPLE_LINES // 2
        return tuple(lines if len(lines) <= SAMPLE_LINES else (*lines[:half], *lines[-half:]))

    def share(self, pattern: re.Pattern[str]) -> float:
        """Share of the lines in which the pattern is found."""
        lines = self.lines
        return sum(1 for x in lines if pattern.search(x)) / len(lines) if lines else 0.0

    def hits(self, pattern: re.Pattern[str]) -> int:
        """Number of lines in which the pattern is found."""
        return sum(1 for x in self.lines if pattern.search(x))

    def bare_hits(self, pattern: re.Pattern[str]) -> int:
        """The same for lines without the rank and the time in front."""
        return sum(1 for x in self._bare if pattern.search(x))

    @cached_property
    def _bare(self) -> tuple[str, ...]:
        return tuple(split_prefix(x)[1] for x in self.lines)


def _bounded(lines: list[str]) -> list[str]:
    """The lines; long ones are cut, so that no input takes its formats long to look at."""
    long = 0
    for k, text in enumerate(lines):
        if len(text) > BRIEF_CHARS:
            lines[k] = text[: MAX_LINE_CHARS if long < WHOLE_CHARS else BRIEF_CHARS]
            long += len(text)
    return lines


def split_lines(text: str) -> list[str]:
    """Lines as a terminal shows them: progress bars end theirs with a carriage return; colours removed."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
