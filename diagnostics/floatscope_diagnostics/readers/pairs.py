"""Names and numbers inside a line of text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from floatscope_diagnostics.readers.numbers import NUMBER, to_float

NAME = r"[A-Za-z][\w./@'-]{0,80}"
# name: 1.5   name: [nan]   name: 1.5 (1.6), of which the first number is taken
COLON = re.compile(rf"({NAME})[ ]?:(?:\s{{1,12}}\[?|\[)({NUMBER})", re.I)
# name=1.5
EQUALS = re.compile(rf"({NAME})\s?=\s{{0,12}}\[?({NUMBER})", re.I)
# name 1.5
BLANK = re.compile(rf"(?<![\w.])({NAME})\s{{1,12}}({NUMBER})", re.I)


def pairs(text: str, pattern: re.Pattern[str]) -> Iterable[tuple[str, float]]:
    """(name, value) of each match whose second group is a number, NaN or Inf."""
    for match in pattern.finditer(text):
        value = to_float(match[2])
        if value is not None:
            yield match[1], value


def renamed(found: Iterable[tuple[str, float]], ours: Mapping[str, str | None]) -> dict[str, float]:
    """The values under our names. ours: their name (lower case) -> ours, None to leave it out; other names
    stay as they are. Of two values under one name the first stays."""
    out: dict[str, float] = {}
    for name, value in found:
        key = ours.get(name.lower(), name)
        if key is not None:
            out.setdefault(key, value)
    return out
