"""The part of the report that comes before the diagnosis: on the terminal and as a page's section."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from floatscope_diagnostics.recorder.story import Story
from floatscope_diagnostics.recorder.words import facts, many, stack, title
from floatscope_diagnostics.reports.html import name, text
from floatscope_diagnostics.reports.terminal import Style

MOST_DETAILED = 4  # ranks in full; the others have a line each
_LEAD = 12


def terminal(stories: Sequence[Story], style: Style, *, everything: bool) -> str:
    """What the recorders know, for the terminal."""
    lines: list[str] = []
    if len(stories) > 1:
        lines += [style.paint(f"{len(stories):,} flight recorders", "strong"), *many(stories), ""]
    for story in _detailed(stories, everything=everything):
        lines += [*_one(story, style), ""]
    return "\n".join(lines)


def section(stories: Sequence[Story]) -> Iterator[str]:
    """What the recorders know, as HTML."""
    yield '<section class="paper"><h2>Flight recorder</h2>'
    if len(stories) > 1:
        yield "<ul>"
        yield from (f"<li>{text(line)}</li>" for line in many(stories))
        yield "</ul>"
    for story in _detailed(stories, everything=False):
        yield f"<h3>{name(title(story))}</h3>"
        yield '<dl class="kv">'
        yield from (f"<dt>{text(head)}</dt><dd><p>{text(value)}</p></dd>" for head, value in facts(story))
        yield "</dl>"
        shown = stack(story)
        if shown:
            yield '<div class="scroll"><pre>' + "\n".join(text(line) for line in shown) + "</pre></div>"
    yield "</section>"


def _detailed(stories: Sequence[Story], *, everything: bool) -> Sequence[Story]:
    """Those that died first: an exception, then a signal, then silence; each by its last sign."""
    if everything or len(stories) <= 1:
        return stories
    order = sorted(
        stories,
        key=lambda s: (
            s.ending is None or not s.ending.kind,
            not s.fault,
            s.now.time if s.now is not None else 0.0,
        ),
    )
    return order[:MOST_DETAILED]


def _one(story: Story, style: Style) -> Iterator[str]:
    yield style.paint(title(story), "strong")
    yield style.paint(f"flight recorder {story.path}", "faint")
    for head, value in facts(story):
        rows = textwrap.wrap(value, max(style.width - 2 - _LEAD, 20), break_on_hyphens=False) or [""]
        role = "critical" if head == "Ended" and story.status == "crashed" else "strong"
        for k, row in enumerate(rows):
            lead = style.paint(head.ljust(_LEAD), role) if k == 0 else " " * _LEAD
            yield lead + row
    shown = stack(story)
    if shown:
        yield style.paint("Stack", "strong")
        yield from ("  " + line[: max(style.width * 2, 160)] for line in shown)
