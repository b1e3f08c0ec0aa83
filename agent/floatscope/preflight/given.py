"""A preflight's result that somebody hands over: ``floatscope preflight --json``, as object or file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from floatscope.preflight.fitting import fitting
from floatscope.protocol.errors import ProtocolError
from floatscope.protocol.preflight_field import preflight_field

MAX_FILE_BYTES = 4 * 2**20


class PreflightRefused(ValueError):
    """What is no preflight; the message names the file or field, what was expected and what to do."""


def read_preflight(path: Path) -> dict[str, Any]:
    """The document in a file of ``floatscope preflight --json``. Raises PreflightRefused."""
    try:
        if not path.is_file():
            raise PreflightRefused(f"{path}: expected a file written by `floatscope preflight --json`")
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except PreflightRefused:
        raise
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise PreflightRefused(f"{path}: {error}") from error
    if len(data) > MAX_FILE_BYTES:
        raise PreflightRefused(f"{path}: expected at most {MAX_FILE_BYTES:,} bytes, it is larger")
    try:
        return preflight_field(json.loads(data), field="document", most_chars=MAX_FILE_BYTES)
    except ProtocolError as error:
        raise PreflightRefused(f"{path}: {error}; write it with `floatscope preflight --json`") from error
    except (ValueError, RecursionError) as error:
        why = " ".join(str(error).split())[:200]
        raise PreflightRefused(
            f"{path}: it is no JSON ({why}); write it with `floatscope preflight --json`"
        ) from error


def given_preflight(given: object) -> dict[str, Any]:
    """What goes with a run of an object or of a file's path. Raises PreflightRefused."""
    if isinstance(given, str | Path):
        return _fitted(read_preflight(Path(given).expanduser()), str(given))
    if not isinstance(given, Mapping):
        raise PreflightRefused(f"expected the document of `floatscope preflight --json`, got {given!r:.80}")
    try:
        return _fitted(preflight_field(given, field="document", most_chars=MAX_FILE_BYTES), "document")
    except ProtocolError as error:
        raise PreflightRefused(f"{error}; make it with `floatscope preflight --json`") from error


def _fitted(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = fitting(document)
    if found is None:
        raise PreflightRefused(f"{name}: too large to go with a run, even without what passes")
    return found
