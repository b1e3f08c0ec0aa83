"""The words of a fact, from the docstring of its file."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import ModuleType

HEADINGS = ("What people say", "What is true", "How it is measured", "What to do", "Source")


@dataclass(frozen=True)
class FactText:
    """title: the docstring's first line.  The rest are its sections, each one paragraph."""

    title: str
    claim: str
    truth: str
    method: str
    do: str
    source: str


def text_of(module: ModuleType) -> FactText:
    """Reads the docstring. Raises ValueError for a heading that is missing, doubled or empty."""
    lines = inspect.cleandoc(module.__doc__ or "").splitlines()
    sections: dict[str, list[str]] = {}
    current: list[str] = []
    for line in lines[1:]:
        if line in HEADINGS:
            if line in sections:
                raise ValueError(f"{module.__name__}: two headings {line!r}")
            current = sections[line] = []
        elif line.strip():
            current.append(line.strip())
    missing = [heading for heading in HEADINGS if not sections.get(heading)]
    if missing or not lines:
        raise ValueError(f"{module.__name__}: no text under {', '.join(missing)}")
    claim, truth, method, do, source = (" ".join(sections[heading]) for heading in HEADINGS)
    return FactText(lines[0].rstrip("."), claim, truth, method, do, source)
