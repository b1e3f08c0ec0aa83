"""Fields of a configuration file, read one at a time and never trusted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from floatscope.model_shapes.shape import ModelConfigError

MOST = {"layers": 10_000, "heads": 65_536, "experts": 65_536, "vocab": 2**28, "context": 2**34}
"""Larger numbers are mistakes: orders of magnitude above every published model."""
MOST_FEATURES = 2**24


@dataclass
class Fields:
    """The fields of one section of a file.

    source: the file, as messages name it. prefix: path of the section in it, as ``text_config.``.  used: the
    names that were read, so that a reader can tell what was.
    """

    source: str
    values: Mapping[str, Any]
    prefix: str = ""
    used: set[str] = field(default_factory=set)

    def has(self, *names: str) -> bool:
        """Whether one of them is there and not null."""
        return any(self.values.get(name) is not None for name in names)

    def name_of(self, names: Sequence[str]) -> str:
        """The first of the names that is there and not null, or ""."""
        return next((name for name in names if self.values.get(name) is not None), "")

    def count(
        self, names: Sequence[str], *, default: int | None = None, most: int = MOST_FEATURES, least: int = 1
    ) -> int:
        """A whole number under the first of the names that is there.

        Raises:
            ModelConfigError: none is there and there is no default, or it is no whole number in the range.
        """
        name = self.name_of(names)
        if not name:
            if default is not None:
                return default
            raise self.error(names[0], f"a whole number from {least:,} to {most:,}", "nothing", names[1:])
        value = self.values[name]
        self.used.add(name)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.error(name, f"a whole number from {least:,} to {most:,}", shown(value))
        return value

    def flag(self, names: Sequence[str], *, default: bool) -> bool:
        """True or false under the first of the names that is there.

        Raises:
            ModelConfigError: it is something else.
        """
        name = self.name_of(names)
        if not name:
            return default
        value = self.values[name]
        self.used.add(name)
        if not isinstance(value, bool):
            raise self.error(name, "true or false", shown(value))
        return value

    def text(self, name: str, default: str = "") -> str:
        """A short text, or the default where there is none.

        Raises:
            ModelConfigError: it is something else.
        """
        value = self.values.get(name)
        if value is None:
            return default
        self.used.add(name)
        if not isinstance(value, str) or len(value) > 200:
            raise self.error(name, "a text of at most 200 characters", shown(value))
        return value

    def section(self, name: str) -> Fields | None:
        """A section in this one, None if it is not there.

        Raises:
            ModelConfigError: it is something else.
        """
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(name, "a section of fields", shown(value))
        return Fields(self.source, value, f"{self.prefix}{name}.")

    def error(self, name: str, expected: str, found: str, also: Sequence[str] = ()) -> ModelConfigError:
        """The error of one field, in the words all of them use."""
        other = f" (or {', '.join(also)})" if also else ""
        return ModelConfigError(
            f"{self.source}: field {self.prefix}{name}{other}: expected {expected}, found {found}; "
            "correct the file, or give another one"
        )


def shown(value: object) -> str:
    """A value in a message: its kind where it is large, never more than a few words."""
    if value is None:
        return "null"
    if isinstance(value, str):
        return f"the text {value[:40]!r}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else f"{value:g}"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < 10**18 else "a number of more than 18 digits"
    return f"a {'list' if isinstance(value, Sequence) else 'section'}"
