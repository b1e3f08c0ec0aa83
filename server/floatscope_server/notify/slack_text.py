"""Pieces of Slack messages: escaped text, links, dates, blocks within Block Kit's limits, a small curve."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from floatscope_server.notify import words

SECTION_CHARS, FIELD_CHARS, FIELDS, ELEMENTS = 3000, 2000, 10, 10
BARS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
NONFINITE, GAP = "\u2573", " "
LOOK_ALIKES = {"*": "\u2217", "~": "\u223c"}
_EMOJI = re.compile(r":(?=[a-z][a-z0-9_+-]*:)")


def escape(text: object, limit: int) -> str:
    """Text as Slack shows it literally: cut, ``& < >`` as entities, no code, emoji, bold or struck text."""
    plain = _entities(words.cut(text, limit))
    for sign, look_alike in LOOK_ALIKES.items():
        if plain.count(sign) > 1:  # one alone changes nothing
            plain = plain.replace(sign, look_alike)
    return _EMOJI.sub(":\u200b", plain)


def code(text: object, limit: int = words.NAME_CHARS) -> str:
    """Text as code, in which nothing has a meaning."""
    return f"`{_entities(words.cut(text, limit))}`"


def _entities(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("`", "'")


def link(url: str, label: str) -> str:
    """A link; ``label`` is escaped already."""
    return f"<{url}|{label.replace('|', '/')}>"


def date(unix: float) -> str:
    """A time in the reader's own zone."""
    return f"<!date^{int(unix)}^{{date_short_pretty}} {{time}}|{words.date(unix)}>"


def section(lines: Sequence[str]) -> dict[str, Any]:
    return {"type": "section", "text": _text(within(lines, SECTION_CHARS))}


def fields(pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    shown = [_text(within([f"*{name}*", value], FIELD_CHARS)) for name, value in pairs[:FIELDS]]
    return {"type": "section", "fields": shown}


def context(texts: Sequence[str]) -> dict[str, Any]:
    return {"type": "context", "elements": [_text(text) for text in texts[:ELEMENTS]]}


def within(lines: Sequence[str], limit: int) -> str:
    """As many whole lines as fit, since a cut could part a link; dots where some are left out."""
    kept: list[str] = []
    used = len("\n...")
    for line in lines:
        used += len(line) + 1
        if used > limit:
            return "\n".join([*kept, "..."])
        kept.append(line)
    return "\n".join(kept)


def curve(points: Sequence[tuple[int, float | None]], *, onset: int | None) -> str:
    """The loss as one line of block characters, with a mark under the onset; empty without two finite
    values.
    """
    finite = [v for _, v in points if v is not None and math.isfinite(v)]
    if len(finite) < 2:
        return ""
    low, high = min(finite), max(finite)
    span = (high - low) or 1.0
    bars = "".join(_bar(value, low, span) for _, value in points)
    head = f"loss  {finite[0]:.4g}  "
    last = points[-1][1]
    line = f"{head}{bars}  {'none' if last is None else words.number(last)}"
    if onset is None or not points[0][0] <= onset:
        return line
    at = sum(1 for step, _ in points if step <= onset) - 1
    label = "onset ^"
    return f"{line}\n{' ' * max(len(head) + at - len(label) + 1, 0)}{label}"


def _bar(value: float | None, low: float, span: float) -> str:
    if value is None:
        return GAP
    if not math.isfinite(value):
        return NONFINITE
    return BARS[min(int((value - low) / span * len(BARS)), len(BARS) - 1)]


def _text(text: str) -> dict[str, Any]:
    return {"type": "mrkdwn", "text": text}
