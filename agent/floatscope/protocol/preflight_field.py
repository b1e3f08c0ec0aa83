"""Checks the result of a preflight that comes with a run: what a page or a rule reads of it has the right
type, and all of it together is bounded. Fields that are not known here are kept as they came.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from floatscope.protocol.errors import ProtocolError
from floatscope.protocol.strict_json import dumps

PREFIX = "floatscope.preflight/"
"""What ``schema`` begins with; later versions add fields and rename none."""
DECISIONS = ("pass", "warn", "fail", "unknown", "not_applicable")
MAX_CHARS = 256 * 1024
"""Of the JSON text: 400 checks with their reasons. It is stored with the run and sent again when the run's
description changes."""
MAX_CHECKS = 2000
CHECK_TEXTS = ("name", "area", "status", "read", "why", "do", "source")


def preflight_field(value: object, *, field: str, most_chars: int = MAX_CHARS) -> dict[str, Any]:
    """The object as it came, or ProtocolError naming what is wrong with it."""
    found = _object(value, field=field)
    schema = found.get("schema")
    if not isinstance(schema, str) or not schema.startswith(PREFIX):
        raise ProtocolError(f"{field}.schema", f'text that begins with "{PREFIX}"', schema)
    _status(found.get("decision"), field=f"{field}.decision")
    checks = found.get("checks", [])
    if not isinstance(checks, list | tuple):
        raise ProtocolError(f"{field}.checks", "a list", checks)
    if len(checks) > MAX_CHECKS:
        raise ProtocolError(f"{field}.checks", f"at most {MAX_CHECKS:,} checks", f"{len(checks):,}")
    for i, one in enumerate(checks):
        row = _object(one, field=f"{field}.checks[{i}]")
        _status(row.get("status"), field=f"{field}.checks[{i}].status")
        for key in CHECK_TEXTS:
            if not isinstance(row.get(key, ""), str):
                raise ProtocolError(f"{field}.checks[{i}].{key}", "text", row[key])
    for key in ("wanted", "counts", "recipes", "versions", "casts"):
        _object(found.get(key, {}), field=f"{field}.{key}")
    for name, text in found.get("versions", {}).items():
        if not isinstance(text, str):
            raise ProtocolError(f"{field}.versions[{name!r}]", "text", text)
    for key in ("gpus", "gemm", "layers"):
        if not isinstance(found.get(key, []), list | tuple):
            raise ProtocolError(f"{field}.{key}", "a list", found[key])
    _bounded(found, field=field, most=most_chars)
    return found


def _bounded(found: Mapping[str, Any], *, field: str, most: int) -> None:
    try:
        size = len(dumps(found))
    except (RecursionError, TypeError, ValueError) as error:
        raise ProtocolError(field, "JSON nested less deeply", type(error).__name__) from error
    if size > most:
        raise ProtocolError(field, f"at most {most:,} characters of JSON", f"{size:,}")


def _object(value: object, *, field: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ProtocolError(field, "an object", value)
    return {str(key): item for key, item in value.items()}


def _status(value: object, *, field: str) -> None:
    if not isinstance(value, str) or value not in DECISIONS:
        raise ProtocolError(field, "one of " + ", ".join(DECISIONS), value)
