"""Chooses the reader of an input by its content."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from floatscope_diagnostics.readers import csv_table, floatscope_jsonl, trainer_state
from floatscope_diagnostics.readers.opening import Opened, open_log
from floatscope_diagnostics.readers.run_log import RunLog, UnreadableLog


@dataclass(frozen=True)
class Reader:
    """A format: its name, whether an input's first bytes look like it, and how it is read."""

    name: str
    looks_like: Callable[[bytes], bool]
    read: Callable[[Opened], Iterator[RunLog]]


def readers() -> tuple[Reader, ...]:
    """All formats, the surest test first."""
    modules = (floatscope_jsonl, trainer_state, csv_table)
    return tuple(Reader(m.FORMAT, m.looks_like, m.read) for m in modules)


@contextmanager
def open_runs(path: str, *, format_name: str | None = None) -> Iterator[Iterator[RunLog]]:
    """The runs of one input, readable inside the ``with`` block. Raises UnreadableLog, also while they are
    read."""
    with open_log(path) as opened:
        yield _reader_for(opened, format_name).read(opened)


def _reader_for(opened: Opened, format_name: str | None) -> Reader:
    known = readers()
    for reader in known:
        if reader.name == format_name or (format_name is None and reader.looks_like(opened.peek)):
            return reader
    names = ", ".join(r.name for r in known)
    raise UnreadableLog(
        'is not a log of a known format. Supported: floatscope JSONL (one object with "step" a line), CSV '
        "with a header that "
        f"names step and loss, Hugging Face trainer_state.json. Force one with --format ({names})"
    )
