"""What the output can show: width, colours, signs; and text from outside made harmless."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

WIDTH = 80
NARROWEST, WIDEST = 56, 120

# The colours of the dashboard on a terminal with 256, and the nearest of the eight every one has.
_PALETTE = {
    "critical": ("1;38;5;209", "31;1"),
    "warning": ("1;38;5;221", "33;1"),
    "info": ("38;5;75", "36"),
    "ok": ("38;5;79", "32"),
    "bad": ("38;5;176", "35"),
    "name": ("38;5;75", "36"),
    "faint": ("38;5;246", "2"),
    "strong": ("1", "1"),
}
_ASCII = str.maketrans(
    {"▲": "!", "●": "*", "✓": "+", "✕": "x", "▼": "v", "×": "x", "…": "...", "▁": "_", "▂": ".", "▃": "-",
     "▄": "~", "▅": "=", "▆": "*", "▇": "%", "█": "#"}
)  # fmt: skip


@dataclass(frozen=True)
class Style:
    """colour: whether escape codes are wanted.  many: 256 colours.  width: columns.  signs: whether the
    encoding has block characters."""

    colour: bool = False
    many: bool = False
    width: int = WIDTH
    signs: bool = True

    def paint(self, text: str, role: str) -> str:
        if not self.colour or not text:
            return text
        return f"\x1b[{_PALETTE[role][0 if self.many else 1]}m{text}\x1b[0m"

    def fit(self, text: str) -> str:
        """The text in characters the output has."""
        return text if self.signs else text.translate(_ASCII)


def style_of(stream: TextIO, env: Mapping[str, str]) -> Style:
    """What a stream can show.

    NO_COLOR (any value but an empty one) and TERM=dumb switch colour off, FORCE_COLOR (but 0) switches it on
    without a terminal; NO_COLOR wins (no-color.org, force-color.org).
    """
    terminal = stream.isatty()
    colour = terminal and env.get("TERM", "") != "dumb"
    if env.get("FORCE_COLOR", "0") not in ("", "0"):
        colour = True
    if env.get("NO_COLOR"):
        colour = False
    many = "256color" in env.get("TERM", "") or bool(env.get("COLORTERM")) or bool(env.get("FORCE_COLOR"))
    width = shutil.get_terminal_size((WIDTH, 24)).columns if terminal else WIDTH
    return Style(colour, many, min(max(width, NARROWEST), WIDEST), _has_signs(stream.encoding))


def _has_signs(encoding: str | None) -> bool:
    try:
        "▁█✕▲✓".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def plain(text: str) -> str:
    """Text from a log without control characters, so that it cannot drive the terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)
