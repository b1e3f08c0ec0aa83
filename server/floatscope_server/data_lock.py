"""One server per data directory: what is in SQLite's file has one process that writes it and remembers it."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import IO

_NAME = "floatscope.lock"

_log = logging.getLogger(__name__)


class AlreadyServed(Exception):
    """Another process serves the data directory."""


class DataLock:
    """A lock on a file in the directory. The operating system frees it when the process ends, however it
    does.
    """

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / _NAME
        self._file: IO[str] | None = None

    def take(self) -> None:
        """Raises AlreadyServed with the number of the process that has it, as far as it is known."""
        try:
            import fcntl  # noqa: PLC0415 - not every system has it
        except ImportError:
            _log.warning("this system has no file locks: make sure that only one server uses the directory")
            return
        file = open(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+")  # noqa: SIM115
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            by = file.read(20).strip() or "unknown"
            file.close()
            raise AlreadyServed(f"process {by}") from error
        except OSError as error:
            file.close()
            _log.warning(
                "%s cannot be locked (%s): make sure that no other server uses it", self._path, error
            )
            return
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        self._file = file

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
