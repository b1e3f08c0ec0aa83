"""A progress line on large inputs: bytes read of all, rows, time left. Only on a terminal."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import BinaryIO, TextIO

from floatscope_diagnostics.gather import Reading, files_of
from floatscope_diagnostics.reports.numbers import size

FROM_BYTES = 4_000_000  # a smaller log is read before anyone looks
FIRST_AFTER_S = 0.5
EVERY_S = 0.2
BAR_COLUMNS = 24
ETA_FROM_SHARE = 0.03  # before that a forecast jumps about


@contextmanager
def progress(paths: Sequence[str], reading: Reading, *, stream: TextIO) -> Iterator[Reading]:
    """The reading with a progress line on ``stream`` while the block runs."""
    total = _total(paths) if stream.isatty() else 0
    if total is not None and total < FROM_BYTES:
        yield reading
        return
    line = ProgressLine(stream, total)
    line.start()
    try:
        yield replace(reading, on_open=line.opened, on_rows=line.rows_read)
    finally:
        line.stop()


def _total(paths: Sequence[str]) -> int | None:
    """Bytes of all inputs; None if one has no size (standard input) or cannot be looked at."""
    if "-" in paths:
        return None
    try:
        return sum(os.stat(path).st_size for path in files_of(paths))
    except (OSError, ValueError):
        return None


@dataclass
class ProgressLine:
    """Draws from a thread of its own, which asks the system where the file stands: reading pays nothing."""

    stream: TextIO
    total: int | None

    def __post_init__(self) -> None:
        self._rows = 0
        self._before = 0  # bytes of inputs that are done
        self._raw: BinaryIO | None = None
        self._size = 0
        self._begun = time.monotonic()
        self._drawn = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def opened(self, raw: BinaryIO) -> None:
        """The next input; the one before is done."""
        self._before += self._size
        self._raw, self._size = raw, 0
        with contextlib.suppress(OSError, ValueError):
            self._size = os.fstat(raw.fileno()).st_size

    def rows_read(self, rows: int) -> None:
        self._rows += rows

    def stop(self) -> None:
        """Takes the line away."""
        self._end.set()
        self._thread.join()
        if self._drawn:
            self.stream.write("\r" + " " * self._drawn + "\r")
            self.stream.flush()

    def text(self) -> str:
        """The line as it stands."""
        done = self._before + self._position()
        rows = f", {self._rows:,} rows" if self._rows else ""
        if not self.total:
            return f"reading: {size(done)}{rows}"
        share = min(done / self.total, 1.0)
        bar = "#" * int(share * BAR_COLUMNS)
        took = time.monotonic() - self._begun
        left = f", {took / share - took:.0f} s left" if ETA_FROM_SHARE < share < 1.0 else ""
        return f"reading: [{bar:<{BAR_COLUMNS}}] {size(done)} of {size(self.total)}{rows}{left}"

    def _position(self) -> int:
        with contextlib.suppress(OSError, ValueError):
            if self._raw is not None:
                return os.lseek(self._raw.fileno(), 0, os.SEEK_CUR)
        return 0

    def _run(self) -> None:
        wait = FIRST_AFTER_S
        while not self._end.wait(wait):
            wait = EVERY_S
            text = self.text()
            self.stream.write("\r" + text.ljust(self._drawn))
            self.stream.flush()
            self._drawn = max(self._drawn, len(text))
