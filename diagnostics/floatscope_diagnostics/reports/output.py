"""Where reports go: a file that is there whole or not at all, or standard output."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import sys
from pathlib import Path

STDOUT = "-"


class OutputError(Exception):
    """A report cannot be written; the message says why and what to do."""


def check_target(target: str, *, option: str) -> None:
    """Raises OutputError before any work is done for a file that cannot be written."""
    if target == STDOUT:
        return
    path = Path(target)
    if path.is_dir():
        raise OutputError(
            f"{option}: {target} is a folder; name a file in it, for example {path / 'report.html'}"
        )
    if not path.parent.is_dir():
        raise OutputError(f"{option}: the folder {path.parent} does not exist; make it first")
    if not os.access(path.parent, os.W_OK):
        raise OutputError(f"{option}: the folder {path.parent} cannot be written")


def write(target: str, text: str, *, option: str) -> None:
    """Writes the text at once: a reader sees the old file or the new one. Always UTF-8, as pages say of
    themselves, also where standard output has another encoding. Raises OutputError.
    """
    if target == STDOUT:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.flush()
            sys.stdout.buffer.write(text.encode())
        else:
            sys.stdout.write(text)
        return
    path = Path(target)
    if path.exists() and not path.is_file():  # a pipe or /dev/stdout: nothing to replace
        _plainly(path, text, option)
        return
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        partial.write_text(text, encoding="utf-8")
        if path.exists():
            partial.chmod(path.stat().st_mode & 0o777)
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise OutputError(f"{option}: {target} cannot be written ({error.strerror or error})") from error


def _plainly(path: Path, text: str, option: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{option}: {path} cannot be written ({error.strerror or error})") from error
