"""Finds flight recorders, and reads what each knows."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from floatscope_diagnostics.gather import Unread
from floatscope_diagnostics.readers.flight_recorder import certainty, load
from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.opening import open_log
from floatscope_diagnostics.readers.run_log import UnreadableLog
from floatscope_diagnostics.recorder.story import Story, tell

MAX_FILES = 4_096  # ranks of a large job
MAX_ENTRIES = 1_000_000
_RANK = re.compile(r"rank(\d{1,9})\.recorder$")


def find(paths: Sequence[str]) -> tuple[list[str], list[Unread]]:
    """The files that are named, and those in the folders that are named: ``*.recorder`` at any depth, ranks
    in order, without those of earlier lives (``.recorder.1``)."""
    files: list[str] = []
    unread: list[Unread] = []
    for path in paths:
        if not os.path.isdir(path):
            files.append(path)
            continue
        found = sorted(_below(path), key=_order)
        files += found
        if not found:
            unread.append(
                Unread(
                    path, "holds no flight recorder (rank0.recorder). Name the folder of the run, or the file"
                )
            )
    files = list(dict.fromkeys(files))
    if len(files) > MAX_FILES:
        unread.append(Unread(files[MAX_FILES], f"{len(files) - MAX_FILES:,} more were left out; name fewer"))
    return files[:MAX_FILES], unread


def read_stories(files: Sequence[str]) -> tuple[list[Story], list[Unread]]:
    """What each recorder knows, and the files that are none."""
    stories: list[Story] = []
    unread: list[Unread] = []
    for path in files:
        try:
            stories.append(_story(path))
        except UnreadableLog as error:
            unread.append(Unread(path, str(error)))
    return stories, unread


def _story(path: str) -> Story:
    with open_log(path) as opened:
        if not certainty(Head(opened.peek)):
            raise UnreadableLog(
                "is no flight recorder: it does not begin with its magic bytes. Logs: floatscope diagnose"
            )
        recording = load(opened)
        first = last = None
        for row in recording.rows():
            first = row.step if first is None else first
            last = row.step
        return tell(path, recording, steps=(first, last))


def _below(folder: str) -> Iterator[str]:
    entries = 0
    for path, folders, names in os.walk(folder):
        folders.sort()
        entries += len(names) + len(folders)
        if entries > MAX_ENTRIES:
            return
        yield from (os.path.join(path, name) for name in names if name.endswith(".recorder"))


def _order(path: str) -> tuple[str, int, str]:
    match = _RANK.search(path)
    return os.path.dirname(path), int(match[1]) if match else -1, path
