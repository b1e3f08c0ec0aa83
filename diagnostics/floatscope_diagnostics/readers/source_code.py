"""Source code at the head of a log: some trainers print their own script first, with strings in it that look
like the log's lines."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

LOOK_LINES = 400  # code begins within these or nowhere
AHEAD_LINES = 40  # so many lines without code end it: more than a docstring has
BEGINS = 4  # strong lines among DENSE_LINES that begin it
DENSE_LINES = 24

_STRONG = re.compile(
    r"^\s{0,64}(?:import \w|from [\w.]{1,80} import |def \w{1,80}\(|class \w{1,80}[(:]|@\w|#include\b"
    r"|if __name__|return\b(?! code)|elif .{1,200}:$|else:$|try:$|except\b.{0,120}:$|with .{1,200}:$"
    r"|for \w.{0,80} in .{1,160}:$|while .{1,160}:$|print\w{0,8}\(|assert \w)"
)
_WEAK = re.compile(
    r"^\s{0,64}(?:#|\"\"\"|'''|[\w.\[\]'\", ]{1,80} [-+*/|]?= \S|[\w.]{1,80}\(.{0,200}[),:(\[{]$"
    r"|[)\]}]{1,4}[,:]?$|if .{1,200}:(?:\s|$)|async def |lambda |raise |yield |del |global "
    r"|pass$|break$|continue$)"
)
_LINE = tuple[int, str]


def without_source(lines: Iterable[_LINE]) -> Iterator[_LINE]:
    """The lines (number, text) without a block of source code near the beginning."""
    source = iter(lines)
    head = deque(islice(source, LOOK_LINES))
    begin = _begin([text for _, text in head])
    if begin is None:
        yield from head
        yield from source
        return
    for _ in range(begin):
        yield head.popleft()
    yield from _after_code(head, source)


def _begin(head: list[str]) -> int | None:
    """The place of the first line of the code, or None."""
    strong = [k for k, text in enumerate(head) if _STRONG.match(text)]
    for first, last in zip(strong, strong[BEGINS - 1 :], strict=False):
        if last - first < DENSE_LINES:
            return first
    return None


def _after_code(held: deque[_LINE], source: Iterator[_LINE]) -> Iterator[_LINE]:
    """Drops lines as long as code comes again within AHEAD_LINES."""
    window: deque[_LINE] = deque()
    while True:
        while len(window) < AHEAD_LINES:
            if held:
                window.append(held.popleft())
                continue
            line = next(source, None)
            if line is None:
                break
            window.append(line)
        last = max((k for k, (_, text) in enumerate(window) if is_code(text)), default=-1)
        if last < 0:
            break
        for _ in range(last + 1):
            window.popleft()
    yield from window
    yield from held
    yield from source


def is_code(text: str) -> bool:
    """Whether a line looks like a line of a script."""
    return bool(_STRONG.match(text) or _WEAK.match(text))
