"""Lines made of fields: ``a: 1 | b 2 | c=3``. Names may have blanks; a field's last word is its value."""

from __future__ import annotations

import re
from collections.abc import Mapping

from floatscope_diagnostics.readers.numbers import to_float

_GLUED = re.compile(r"^([A-Za-z][^=:\s]{0,100})[=:](\S{1,100})$")  # name=1.5, also behind a date
_UNIT = re.compile(
    r"^([-+]?[\d.,]{1,40}(?:[eE][-+]?\d{1,5})?|[-+]?nan|[-+]?inf)(ms|s|%|[kKMGTB]|TFLOPS|GiB|GB|MiB)$"
)
_FACTORS = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}


def fields(text: str, *, between: str = "|") -> dict[str, str]:
    """Name in lower case -> value as written, of each part that has both."""
    out: dict[str, str] = {}
    for part in text.split(between):
        name, _, value = part.strip().rpartition(" ")
        glued = _GLUED.match(value)
        if glued is not None:
            name, value = glued[1], glued[2]
        name = name.strip(" \t:=").lower()
        if name and value:
            out.setdefault(name, value)
    return out


def measure(text: str) -> float | None:
    """The number of ``15.37``, ``153.67ms`` (in seconds), ``8.1%``, ``60.5K``; None for anything else."""
    value = to_float(text)
    if value is not None:
        return value
    match = _UNIT.match(text.strip().rstrip(",;"))
    number = to_float(match[1]) if match else None
    if match is None or number is None:
        return None
    return number / 1000 if match[2] == "ms" else round(number * _FACTORS.get(match[2], 1.0), 6)


def measured(
    found: Mapping[str, str], ours: Mapping[str, str | None], *, others: bool = True
) -> dict[str, float]:
    """The numbers among the fields, under our names.

    ours: their name -> ours, None to leave it out.  others: keep names that are not in ``ours`` as they are.
    """
    out: dict[str, float] = {}
    for name, text in found.items():
        key = ours.get(name, name if others else None)
        value = measure(text) if key is not None else None
        if key is not None and value is not None:
            out.setdefault(key, value)
    return out
