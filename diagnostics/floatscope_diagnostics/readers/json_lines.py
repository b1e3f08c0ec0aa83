"""Lines that are JSON objects with a logger's own idea of steps: read as pieces, like text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from floatscope.protocol.errors import ProtocolError
from floatscope.protocol.strict_json import loads, number
from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.piece import Piece

_FIRST_OBJECTS = 50
_MAX_VALUES = 4_096  # numbers of one object
_MAX_DEPTH = 3


class JsonLines:
    """Parser for a format of JSON lines. read: the piece of an object, or None."""

    def __init__(self, read: Callable[[dict[str, Any]], Piece | None]) -> None:
        self._read = read

    def line(self, number: int, text: str) -> Iterable[Piece]:
        value = object_of(text)
        piece = None if value is None else self._read(value)
        return () if piece is None else (piece,)

    def end(self) -> Iterable[Piece]:
        return ()


def object_of(text: str) -> dict[str, Any] | None:
    """The JSON object that the line is, or None."""
    text = text.strip()
    if not text.startswith("{") or not text.endswith("}"):
        return None
    try:
        value = loads(text)
    except ProtocolError:
        return None
    return value if isinstance(value, dict) else None


def first_objects(head: Head) -> Iterator[dict[str, Any]]:
    """The JSON objects among the first lines; none if the input does not begin with one."""
    for text in head.lines[:_FIRST_OBJECTS]:
        value = object_of(text)
        if value is not None:
            yield value


def numbers(value: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an object by name, NaN and Inf also where they are spelled as text; those of an object
    inside it as ``outer/inner``. Null, text and truth values are left out."""
    out: dict[str, float] = {}
    _collect(value, "", 1, out)
    return out


def _collect(value: Mapping[str, Any], prefix: str, depth: int, out: dict[str, float]) -> None:
    for key, raw in value.items():
        if len(out) >= _MAX_VALUES:
            return
        name = prefix + str(key)
        if isinstance(raw, Mapping):
            if depth < _MAX_DEPTH:
                _collect(raw, name + "/", depth + 1, out)
            continue
        try:
            found = None if isinstance(raw, bool) else number(raw, field=name)
        except ProtocolError:
            continue
        if found is not None:
            out[name] = found
