"""Writes a log so that under its name there is the whole log or nothing new."""

from __future__ import annotations

import contextlib
import gzip
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

GZIP_LEVEL = 6


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file that takes its name when the block ends well, and is gone if it does not, also on Ctrl-C.

    A name that ends in ``.gz`` is compressed. Raises OSError.
    """
    number, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(number, "wb") as raw:
            if path.suffix == ".gz":
                with gzip.GzipFile(
                    filename="", fileobj=raw, mode="wb", compresslevel=GZIP_LEVEL, mtime=0
                ) as packed:
                    yield cast(BinaryIO, packed)
            else:
                yield raw
            raw.flush()
            os.fsync(raw.fileno())
        os.chmod(name, _mode(path))
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def _mode(path: Path) -> int:
    """As the file that is replaced, else as a new file would have."""
    try:
        return path.stat().st_mode & 0o777
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
