"""What stands in front of a program's line: the rank by a launcher, the time by a log driver."""

from __future__ import annotations

import re

_RANK = re.compile(
    r"^\s{0,8}(?:\[(?:rank|default|Rank )\s?(\d{1,6})\]:?|\[\d{1,4},(\d{1,6})\]<std(?:out|err)>:"
    r"|(?:worker-|rank)(\d{1,6}):|\([A-Z][\w.:]{0,60} pid=\d{1,9}(?:, ip=[\d.]{7,15})?\)|(\d{1,5}):(?=\s))\s?"
)
_TIME = re.compile(
    r"^\s{0,8}\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
    r"\]?:?\s{1,4}(?=\S)"
)


def split_rank(text: str) -> tuple[int | None, str]:
    """The rank in front of a line, None where there is none, and the rest of the line.

    Knows ``[rank3]:``, ``[default3]:``, ``[1,3]<stdout>:``, ``worker-3:``, ``(Actor pid=9)``, ``3: ``.
    """
    match = _RANK.match(text)
    if match is None:
        return None, text
    rank = next((x for x in match.groups() if x is not None), None)
    return None if rank is None else int(rank), text[match.end() :]


def split_prefix(text: str) -> tuple[int | None, str]:
    """The rank, and the line without rank and time, in either order."""
    match = _TIME.match(text)
    rank, rest = split_rank(text if match is None else text[match.end() :])
    match = _TIME.match(rest)
    return rank, rest if match is None else rest[match.end() :]
