"""Files that appear whole or not at all, readable by their owner only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def put_in_place(file: Path) -> Iterator[Path]:
    """A new, empty file beside ``file`` (mode 0600) to be filled inside; then it takes the name.

    It is synced first. If anything is raised inside, it is removed and ``file`` stays as it was.
    """
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        yield part
        _sync(part)
        part.replace(file)
        _sync(file.parent)
    finally:
        for left in (part, *(Path(f"{part}{end}") for end in ("-wal", "-shm", "-journal"))):
            left.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
