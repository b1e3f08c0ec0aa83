"""JSON that keeps NaN, +Inf, -Inf and missing apart.

Non-finite numbers are written as the strings "NaN", "Infinity" and "-Infinity", since JSON has no number for
them; a reader also takes the bare tokens and the spellings loggers use.
"""

from __future__ import annotations

import json
import math
from typing import Any

from floatscope.protocol.errors import ProtocolError, TooLarge

_NON_FINITE = {
    "nan": math.nan, "+nan": math.nan, "-nan": math.nan,
    "infinity": math.inf, "+infinity": math.inf, "inf": math.inf, "+inf": math.inf,
    "-infinity": -math.inf, "-inf": -math.inf,
}  # fmt: skip


def plain(value: Any) -> Any:
    """The same structure, ready for any JSON writer.

    Every non-finite float is replaced by its string, and in texts what no encoding can write (surrogates,
    as of a file's name or a variable that is not UTF-8) by "?".
    """
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {plain(str(k)): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


def dumps(value: Any) -> str:
    """Compact JSON text on one line; non-finite floats as strings.

    Raises TypeError for what JSON cannot hold.
    """
    return json.dumps(plain(value), separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def check_writable(value: Any) -> None:
    """Raises UnicodeEncodeError for a text that no encoding takes, RecursionError for endless nesting.

    For who receives: ``dumps`` would write such a text with "?" in place of what cannot be written.
    """
    json.dumps(value, ensure_ascii=False).encode()


def refuse_too_many(text: bytes, *, most: int, field: str = "body") -> None:
    """Raises TooLarge if a JSON text holds more than ``most`` values, before any of them is built.

    Every value but the first of its list or object stands behind a comma, so commas and opening brackets
    bound the number from above; commas inside strings count too.
    """
    values = 1 + text.count(b",") + text.count(b"[") + text.count(b"{")
    if values > most:
        expected = f"at most {most:,} values of JSON; send fewer steps, or safetensors"
        raise TooLarge(field, expected, f"about {values:,}")


def loads(text: str | bytes, *, field: str = "body") -> Any:
    """The value of a JSON text.

    Bare NaN and Infinity tokens are taken. Raises ProtocolError, also for absurd nesting.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ProtocolError(
            field, "JSON nested less deeply", "more levels than the reader follows"
        ) from error
    except UnicodeDecodeError as error:
        raise ProtocolError(
            field, "JSON in UTF-8", f"a byte that is not UTF-8 at offset {error.start}"
        ) from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise ProtocolError(field, "valid JSON", f"{error.msg} at {where}") from error
    except ValueError as error:  # an integer of more digits than Python converts
        raise ProtocolError(field, "JSON with numbers of sane length", str(error)) from error


def number(value: object, *, field: str) -> float | None:
    """A number as a float, None for null, or ProtocolError.

    Strings count only if they spell a non-finite number.
    """
    if value is None:
        return None
    if isinstance(value, bool):
        raise ProtocolError(field, "a number", value)
    if isinstance(value, float):
        return value
    if isinstance(value, int):
        try:
            return float(value)
        except OverflowError as error:
            raise ProtocolError(field, "a number within float64", "an integer beyond 1.8e308") from error
    if isinstance(value, str):
        found = _NON_FINITE.get(value.strip().lower())
        if found is not None:
            return found
    raise ProtocolError(field, 'a number, null, "NaN", "Infinity" or "-Infinity"', value)


def whole(value: object, *, field: str, low: int, high: int) -> int:
    """An integer between low and high (both included), or ProtocolError.

    3.0 counts as 3; 3.5, true and "3" do not.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ProtocolError(field, f"a whole number from {low:,} to {high:,}", value)
    return value
