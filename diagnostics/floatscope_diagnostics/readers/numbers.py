"""Numbers as training logs spell them."""

from __future__ import annotations

import re

# A number, NaN or Inf in the spellings met in logs, as a whole word; for use inside a format's pattern. Each
# part is bounded and none can take what the next would: a line of digits costs no more than any other.
NUMBER = (
    r"(?:[-+]?(?:1\.#[A-Za-z]{3,4}\d{0,3}"
    r"|\d[\d,_]{0,40}(?:\.\d{0,40})?(?:[eE][-+]?\d{1,5})?|\.\d{1,40}(?:[eE][-+]?\d{1,5})?"
    r"|nan|inf(?:inity)?)(?!\w)(?!\.\w))"
)
_SPELLED = {"nan": "nan", "inf": "inf", "infinity": "inf", "-inf": "-inf", "-infinity": "-inf"}
_MICROSOFT = re.compile(r"1\.#(?:(qnan|snan|ind)|inf)\d{0,3}")  # the C runtime before 2015
_GROUPED = re.compile(r"^[-+]?\d{1,3}(?:,\d{3})+(?:\.\d*)?$")
_EMPTY = frozenset(("", "none", "null", "-", "--", "n/a", "na", "nil"))


def to_float(text: str) -> float | None:
    """The number, NaN or Inf that ``text`` spells; None for an empty field or anything else.

    Takes brackets around it, thousands commas, a sign before nan and a trailing unit dot.
    """
    word = text.strip().strip("[]()'\"").strip().rstrip(".,;")
    low = word.lower()
    if low in _EMPTY:
        return None
    if low.lstrip("+-") == "nan":
        return float("nan")
    old = _MICROSOFT.fullmatch(low.lstrip("+-")) if "#" in low else None
    if old is not None:
        return float("nan") if old[1] else float("-inf" if low[0] == "-" else "inf")
    if low.lstrip("+") in _SPELLED:
        return float(_SPELLED[low.lstrip("+")])
    if "," in word:
        if not _GROUPED.match(word):
            return None
        word = word.replace(",", "")
    if len(word) > 64 or "_" in word:
        return None
    try:
        return float(word)
    except ValueError:
        return None


def to_int(text: str) -> int | None:
    """A whole number below 2^53, or None."""
    return whole(to_float(text))


def whole(value: float | None) -> int | None:
    """The number if it is whole and its magnitude below 2^53, else None: 3.5 epochs are no step."""
    if value is None or value != value or abs(value) >= 2**53 or value != int(value):
        return None
    return int(value)
