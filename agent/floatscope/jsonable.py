"""Makes what users hand over fit for JSON, and keeps it small."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

MOST_ITEMS = 2000  # of one mapping or list: a configuration, not a data set
MOST_DEPTH = 8
MOST_CHARS = 4000


def jsonable(value: Any, *, depth: int = MOST_DEPTH) -> Any:
    """The same value in what JSON knows; anything else becomes its text, shortened.

    Non-finite floats stay floats (``strict_json`` spells them). Nothing raises.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return text(value)
    if isinstance(value, numbers.Integral):
        return _number(int, value)
    if isinstance(value, numbers.Real):
        return _number(float, value)
    if depth > 0 and isinstance(value, Mapping):
        items = list(value.items())[:MOST_ITEMS]
        return {text(str(key)): jsonable(item, depth=depth - 1) for key, item in items}
    if depth > 0 and isinstance(value, list | tuple | set | frozenset):
        return [jsonable(item, depth=depth - 1) for item in list(value)[:MOST_ITEMS]]
    return describe(value)


def describe(value: Any) -> str:
    """The value's text, or its type where it has none."""
    try:
        return text(str(value))
    except Exception as error:  # somebody else's __str__
        return f"<{type(value).__name__} without text: {type(error).__name__}>"


def text(value: str) -> str:
    """Valid Unicode without NUL, shortened."""
    return value[:MOST_CHARS].encode("utf-8", "replace").decode("utf-8").replace("\0", "")


def one_line(value: str, *, most: int) -> str:
    """Text from outside for a log or a terminal: on one line, cut, with nothing in it that acts on either."""
    words = " ".join(value[: 4 * most].split())
    return printable(words if len(words) <= most else words[:most] + "...")


def printable(value: str) -> str:
    """The text with what is neither printable nor the end of a line written as an escape."""
    if value.isprintable():
        return value
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in value)


def _number(kind: Any, value: Any) -> Any:
    try:
        number = kind(value)
        return number if kind is float or abs(number) < 2**63 else describe(value)
    except (OverflowError, ValueError, TypeError):
        return describe(value)
