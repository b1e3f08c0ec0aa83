"""The small files of a spool: its lock, and ``run.json``, which says whose steps it holds."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

FORMAT = "floatscope.spool/1"
RUN_FILE = "run.json"
LOCK_FILE = "lock"
MAX_RUN_BYTES = 64 * 2**20
MODE = 0o600  # a run's description and values are its owner's


class SpoolBusy(OSError):
    """Another living process works with this spool."""


def read_about(path: Path) -> dict[str, Any]:
    """What ``run.json`` of a spool says; empty where there is none, or none that can be read."""
    try:
        value = json.loads(read_file(path / RUN_FILE, most=MAX_RUN_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) and value.get("format") == FORMAT else {}


def take_lock(path: Path) -> int:
    """A locked file; the lock belongs to this process alone and ends with it, also where it was forked."""
    try:
        import fcntl  # noqa: PLC0415 - not every system has it
    except ImportError as error:
        raise OSError("there are no file locks on this system") from error
    for _ in range(10):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, MODE)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file).st_ino == os.stat(path).st_ino:
                return file
        except (BlockingIOError, PermissionError) as error:
            os.close(file)
            raise SpoolBusy("another process works with it") from error
        except FileNotFoundError:  # it was removed with its spool between the two calls
            pass
        except BaseException:
            os.close(file)
            raise
        os.close(file)
    raise SpoolBusy("other processes come and go there")


def owned(path: str, flags: int) -> int:
    """An ``opener`` of files that only their owner can read."""
    return os.open(path, flags | os.O_CLOEXEC, MODE)


def is_own(path: Path) -> bool:
    """Whether this user has made it; true where the system knows no owners."""
    return not hasattr(os, "geteuid") or path.stat().st_uid == os.geteuid()


def read_file(path: Path, *, most: int) -> bytes:
    """The whole file. Raises OSError, also where it has more than ``most`` bytes."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(f"{path.name} has {size:,} bytes, more than any file of ours")
        return file.read(most)
