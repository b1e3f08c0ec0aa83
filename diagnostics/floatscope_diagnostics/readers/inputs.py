"""What the user named, as inputs: files, folders, patterns, standard input."""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import BinaryIO

from floatscope_diagnostics.readers import mlflow_files, te_debug, tensorboard
from floatscope_diagnostics.readers.folders import MLFLOW, TE_DEBUG, TENSORBOARD, Found, search, together
from floatscope_diagnostics.readers.formats import noted, open_runs
from floatscope_diagnostics.readers.opening import Opened, open_log
from floatscope_diagnostics.readers.run_log import RunLog, UnreadableLog

MAX_INPUTS = 1_000
_MAX_MATCHES = 100_000  # of a pattern, before folders are left out
_PARTS = {
    TENSORBOARD: tensorboard.read_parts,
    MLFLOW: mlflow_files.read_parts,
    TE_DEBUG: te_debug.read_parts,
}
_AT_ONCE = frozenset((TE_DEBUG,))  # ranks are read side by side


@dataclass(frozen=True)
class Input:
    """One file, or several that are one run.

    path: how the report calls it.  parts: the files, in the order in which they are read.  kind: how several
    parts are read together.  notes: what was taken and left, for the report.  error: why there is nothing to
    read; parts is then empty.
    """

    path: str
    parts: tuple[str, ...] = ()
    kind: str | None = None
    notes: tuple[str, ...] = ()
    error: str | None = None


def expand(paths: Sequence[str]) -> list[Input]:
    """The inputs of what the user named, in order. Folders are searched for logs, patterns that the shell has
    left are matched. What cannot be found is an input with an error."""
    out: list[Input] = []
    named: list[str] = []
    for path in paths:
        if path != "-" and not os.path.lexists(path) and glob.has_magic(path):
            matches = _matches(path)
            if matches:
                named += matches
            else:
                out.append(Input(path, error="no file matches the pattern. Check the path"))
        else:
            named.append(path)
    files: list[str] = []
    for path in named:
        if path != "-" and os.path.isdir(path):
            out += [_input(f) for f in together(files)]
            files = []
            out += _folder(path)
        else:
            files.append(path)
    out += [_input(f) for f in together(files)]
    if len(out) > MAX_INPUTS:
        left = f"{len(out) - MAX_INPUTS:,} more inputs were left out; name fewer"
        out = [*out[: MAX_INPUTS - 1], replace(out[MAX_INPUTS - 1], notes=(*out[MAX_INPUTS - 1].notes, left))]
    return out


@contextmanager
def open_input(
    item: Input,
    *,
    format_name: str | None = None,
    mapping: Mapping[str, str] | None = None,
    on_open: Callable[[BinaryIO], None] | None = None,
) -> Iterator[Iterator[RunLog]]:
    """The runs of an input, readable inside the ``with`` block. Raises UnreadableLog, also while they are
    read. The keywords are those of ``open_runs``; several parts are read by their kind."""
    if item.error is not None:
        raise UnreadableLog(item.error)
    if item.kind is None or len(item.parts) == 1:
        path = item.parts[0]
        with open_runs(path, format_name=format_name, mapping=mapping, on_open=on_open) as runs:
            yield runs
        return
    notes: list[str] = []
    with ExitStack() as stack:
        parts = _opened(item, mapping, on_open, notes, stack)
        read = partial(_PARTS[item.kind], parts)
        yield noted(read, notes)


def _opened(
    item: Input,
    mapping: Mapping[str, str] | None,
    on_open: Callable[[BinaryIO], None] | None,
    notes: list[str],
    stack: ExitStack,
) -> Iterator[Opened]:
    """The parts that can be opened, one after the other; their notes are gathered in ``notes``."""
    unread: list[str] = []
    for path in item.parts:
        with ExitStack() as one:
            try:
                opened = one.enter_context(open_log(path, on_open=on_open))
            except UnreadableLog as error:
                unread.append(f"{os.path.basename(path)} {error}")
                continue
            opened.mapping = mapping or {}
            if item.kind in _AT_ONCE:
                opened.notes = notes
                stack.push(one.pop_all())
            yield opened
            notes += [n for n in opened.notes if n not in notes]
    if unread:
        notes.append(f"{len(unread):,} of {len(item.parts):,} files could not be read: {unread[0]}")


def _matches(pattern: str) -> list[str]:
    found = itertools.islice(glob.iglob(pattern, recursive=True), _MAX_MATCHES)
    return sorted(found)[: MAX_INPUTS + 1]


def _folder(path: str) -> list[Input]:
    found, notes = search(path)
    if not found:
        words = "; ".join(("holds no training log that is known", *notes))
        return [Input(path, error=words + ". Name the log itself if it is there under another name")]
    out = [_input(f) for f in found]
    return [replace(out[0], notes=(*notes, *out[0].notes)), *out[1:]]


def _input(found: Found) -> Input:
    return Input(found.label, found.parts, found.kind, found.notes)
