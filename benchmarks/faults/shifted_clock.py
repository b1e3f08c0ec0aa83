"""A clock of the wall that can be set wrong for one process: its time.time() plus what stands in a file.

Only what a wrongly set clock would change is changed; time.monotonic(), by which waits are measured, goes on.
"""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path

ENVIRONMENT = "FAULTS_CLOCK"
_SHIFT = struct.Struct("<d")


def make(path: Path) -> None:
    """The file, saying 0."""
    path.write_bytes(_SHIFT.pack(0.0))


def shift(path: Path, seconds: float) -> None:
    """Sets the clock of the processes that use the file wrong by so much."""
    with path.open("r+b") as file:
        file.write(_SHIFT.pack(seconds))


def install(path: Path) -> None:
    """Gives this process the clock; before anything is imported that keeps a reference to time.time."""
    file = path.open("r+b")
    seen = mmap.mmap(file.fileno(), _SHIFT.size)
    real = time.time
    time.time = lambda: real() + _SHIFT.unpack_from(seen)[0]
