"""A data directory whose disk can be made full at will, and given room again."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

SIZE_MIB = 512
CHOICES = (0, 4096, 30_000, 200_000, 1_000_000)  # about so many bytes are left where the disk is called full


class Room(Protocol):
    """way: in words, how the disk is filled."""

    way: str
    data_dir: Path

    def fill(self, pid: int, rng: random.Random) -> None: ...
    def free(self, pid: int | None) -> None: ...


class SmallDisk:
    """A file system of its own in memory, filled by a file that takes what is left."""

    way = "a tmpfs of its own, filled by another file (ENOSPC)"

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self._ballast = data_dir / "ballast"

    def fill(self, pid: int, rng: random.Random) -> None:
        """Leaves a random, small number of bytes."""
        room = os.statvfs(self.data_dir)
        left = rng.randrange(rng.choice(CHOICES) + 1)
        size = max(room.f_bavail * room.f_frsize - left, 1)
        with self._ballast.open("wb") as file, contextlib.suppress(OSError):  # the server was quicker
            os.posix_fallocate(file.fileno(), 0, size)

    def free(self, pid: int | None) -> None:
        self._ballast.unlink(missing_ok=True)


class FileLimit:
    """No file of the server may grow beyond a size: what anybody may do to a process of their own."""

    way = "a limit on the size of the server's files (EFBIG), since no file system can be mounted here"

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir

    def fill(self, pid: int, rng: random.Random) -> None:
        """The largest file may still grow by a random, small number of bytes."""
        largest = max((path.stat().st_size for path in self.data_dir.glob("floatscope.db*")), default=0)
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (largest + rng.randrange(rng.choice(CHOICES) + 1), hard))

    def free(self, pid: int | None) -> None:
        if pid is not None:
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))


@contextmanager
def room(folder: Path, *, mount: bool = True) -> Iterator[Room]:
    """mount: whether to try for a file system of its own, which takes rights."""
    data_dir = folder / "data"
    data_dir.mkdir()
    asked = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m", "tmpfs", str(data_dir)]
    is_mounted = (
        mount
        and shutil.which("mount") is not None
        and subprocess.run(asked, capture_output=True, check=False).returncode == 0
    )
    try:
        yield SmallDisk(data_dir) if is_mounted else FileLimit(data_dir)
    finally:
        if is_mounted:
            subprocess.run(["umount", "-l", str(data_dir)], check=True)
