"""Which format an input is in: the one whose reader is surest of what it sees of the content."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.opening import PEEK_BYTES, Opened
from floatscope_diagnostics.readers.run_log import RunLog, UnreadableLog
from floatscope_diagnostics.readers.source_code import is_code

SURE = 0.05  # below it nobody claims the input
WELL = 0.5  # below it a look further into the input may show a format that is surer
LOOK_BYTES = 4 << 20
BRIEF_BYTES = 8 << 10  # enough to tell a log from other files, and eight times as fast as a full look
OBJECTS = 8  # lines that are JSON objects and nothing else: further ones would tell nothing new
MAX_SHOWN_CHARS = 80


@dataclass(frozen=True)
class Reader:
    """A format: its name, a title for people, how sure it is of an input (0 to 1), and how it is read."""

    name: str
    title: str
    certainty: Callable[[Head], float]
    read: Callable[[Opened], Iterator[RunLog]]


def choose(opened: Opened, known: Sequence[Reader], *, format_name: str | None = None) -> Reader:
    """The reader for the input; of two equally sure ones the first.

    Raises UnreadableLog if none claims it, or if ``format_name`` is not known.
    """
    if format_name is not None:
        return _named(format_name, known)
    brief = Head(opened.peek[:BRIEF_BYTES])
    best, certainty = surest(brief if _only_objects(brief) else Head(opened.peek, opened.later), known)
    if certainty < WELL and len(opened.peek) >= PEEK_BYTES:
        further = Head(opened.look(LOOK_BYTES), opened.later)
        other, surer = surest(further, known)
        if surer > certainty:
            best, certainty = other, surer
    if certainty >= SURE:
        return best
    raise UnreadableLog(_refusal(Head(opened.peek)))


def surest(head: Head, known: Sequence[Reader]) -> tuple[Reader, float]:
    """The reader that is surest of the head, and how sure it is."""
    rated = [(r.certainty(head), -k) for k, r in enumerate(known)]
    certainty, place = max(rated)
    return known[-place], certainty


def _only_objects(head: Head) -> bool:
    lines = [line.strip() for line in head.lines[:-1]]  # the last one may be cut
    return len(lines) >= OBJECTS and all(line.startswith("{") and line.endswith("}") for line in lines)


def _named(name: str, known: Sequence[Reader]) -> Reader:
    for reader in known:
        if reader.name == name:
            return reader
    near = difflib.get_close_matches(name, [r.name for r in known], n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else "."
    shown = name[:MAX_SHOWN_CHARS]
    raise UnreadableLog(f"there is no format {shown!r}{hint} floatscope diagnose --formats lists them")


def _refusal(head: Head) -> str:
    text = [line for line in head.first.decode("utf-8", "replace").splitlines() if line.strip()]
    shown = text[0].strip()[:MAX_SHOWN_CHARS] if text else ""
    found = [line for line in text[:400] if is_code(line)]
    if len(found) > 0.6 * len(text[:400]) and len(text) > 8:
        return (
            f"looks like source code, not like the log of a run (first line: {shown!r}). Pass what the run "
            "printed"
        )
    return (
        "is not a log of a known format: no line with a step and a loss, no table with such columns and no "
        f"known file format was found (first line: {shown!r}). If it is a training log, name its format with "
        "--format NAME; floatscope diagnose --formats lists them"
    )
