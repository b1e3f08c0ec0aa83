"""Several runs at a glance: one line each, worst first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from floatscope_diagnostics.curves import Curves
from floatscope_diagnostics.diagnose import Diagnosed
from floatscope_diagnostics.reports import words
from floatscope_diagnostics.reports.numbers import count, number
from floatscope_diagnostics.reports.terminal import Style, plain
from floatscope_diagnostics.verdict import STATUSES

SIGNS = {
    "critical": ("▲", "critical"),
    "warning": ("▲", "warning"),
    "watch": ("●", "info"),
    "healthy": ("✓", "ok"),
}
MOST_ROWS = 60
NAME_SHARE = 0.3  # of the width


def run_table(done: Sequence[Diagnosed], names: Sequence[str], style: Style) -> Iterator[str]:
    """The lines of the table."""
    yield style.paint(counts(done), "strong")
    yield ""
    order = sorted(range(len(done)), key=lambda k: -STATUSES.index(done[k].verdict.status))[:MOST_ROWS]
    ends = {k: loss_ends(done[k].curves) for k in order}
    steps = {k: f"{done[k].verdict.source.steps:,}" for k in order}
    wide = [max(len(column[k]) for k in order) for column in (steps, ends)]
    room = min(max(len(names[k]) for k in order), int(NAME_SHARE * style.width))
    for k in order:
        d = done[k]
        sign, role = SIGNS[d.verdict.status]
        lead = f"{_tail(names[k], room):<{room}}  {steps[k]:>{wide[0]}}  {ends[k]:<{wide[1]}}"
        left = max(style.width - 6 - len(lead), 16)
        text = outcome(d)
        text = text if len(text) <= left else text[: left - 3] + "..."
        yield (style.paint(style.fit(sign), role) + f" {lead}  {text}").rstrip()
    if len(done) > MOST_ROWS:
        yield f"and {count(len(done) - MOST_ROWS, 'more run')}"


def counts(done: Sequence[Diagnosed]) -> str:
    """``30 runs: 1 critical, 2 warning, 27 healthy``."""
    of = [(s, sum(d.verdict.status == s for d in done)) for s in reversed(STATUSES)]
    return f"{count(len(done), 'run')}: " + ", ".join(f"{n} {status}" for status, n in of if n)


def loss_ends(curves: Curves) -> str:
    """First and last loss, or of the first series there is."""
    series = curves.series
    if not series:
        return ""
    curve = series.get("loss") or next(iter(series.values()))
    return f"{number(curve.first_value)} > {number(curve.last_value)}"


def outcome(d: Diagnosed) -> str:
    """What was found, in a few words."""
    found = words.serious(d.verdict) or words.shown(d.verdict)
    if not found:
        return d.verdict.status
    top = found[0].finding
    more = len(found) - 1
    name = top.symptom if top.cause == "undetermined" else top.cause
    return f"{name}, step {top.onset:,}" + (f", {more} more" if more else "")


def _tail(text: str, room: int) -> str:
    """The end of a name says more than its beginning."""
    text = plain(text)
    return text if len(text) <= room else "..." + text[len(text) - room + 3 :]
