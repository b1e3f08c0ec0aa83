"""Numbers as training logs spell them."""

from __future__ import annotations

import re

# A number, NaN or Inf in the spellings met in logs, as a whole word; for use inside a format's pattern. Each
# part is bounded and none can take what the next would: a line of digits costs no more than any other.
NUMBER = (
    r"(?:[-+]?(?:\d[\d,_]{0,40}(?:\.\d{0,40})?(?:[eE][-+]?\d{1,5})?|\.\d{1,40}(?:[eE][-+]?\d{1,5})?"
    r"|nan|inf(?:inity)?)(?!\w)(?!\.\w))"
)
_SPELLED = {"nan": "nan", "inf": "inf", "infinity": "inf", "-inf": "-inf", "-infinity": "-inf"}
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
    if low.lstrip("+-") in ("nan", "1.#qnan", "1.#ind"):
        return float("nan")
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
    value = to_float(text)
    if value is None or value != value or abs(value) >= 2**53 or value != int(value):
        return None
    return int(value)
