"""The terminal report: what, since when, where, why, what to do, what was not checked, how it was read."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from floatscope_diagnostics.diagnose import Diagnosed
from floatscope_diagnostics.reports import words
from floatscope_diagnostics.reports.curve_picture import Mark, drawn_names, picture
from floatscope_diagnostics.reports.numbers import count
from floatscope_diagnostics.reports.run_table import run_table
from floatscope_diagnostics.reports.terminal import Style, plain
from floatscope_diagnostics.verdict import Judged

SIGNS = {"critical": "▲ CRITICAL", "warning": "▲ WARNING", "info": "● NOTE"}
LEAD = 12
SURE_COLUMNS = 12
MOST_EVIDENCE = 10
MOST_NOTES = 6
MOST_DETAILED = 8  # runs with findings whose details follow a table of runs
_INDENT = "  "


def report(done: Sequence[Diagnosed], style: Style, *, everything: bool = False) -> str:
    """The report of all runs. everything: also details of healthy runs and every signal that is missing."""
    if not done:
        return ""
    names = words.names_of(done)
    if len(done) == 1:
        return _one(done[0], names[0], style, everything=everything)
    parts = ["\n".join(run_table(done, names, style))]
    detailed = [(d, n) for d, n in zip(done, names, strict=True) if everything or words.serious(d.verdict)]
    detailed.sort(key=lambda pair: words.SEVERITY_ORDER.get(pair[0].verdict.status, 3))
    for d, name in detailed if everything else detailed[:MOST_DETAILED]:
        parts.append(_one(d, name, style, everything=everything).rstrip())
    text = ("\n\n" + style.paint("=" * (style.width - 2), "faint") + "\n\n").join(parts)
    left = 0 if everything else len(detailed) - MOST_DETAILED
    if left > 0:
        text += f"\n\nDetails of {count(left, 'more run')} with findings: --full"
    return text + "\n"


def _one(d: Diagnosed, name: str, style: Style, *, everything: bool) -> str:
    lines = [*_head(d, name, style), ""]
    found = words.shown(d.verdict)
    if not words.serious(d.verdict):
        sign = (
            style.paint(style.fit("✓ HEALTHY"), "ok")
            if not found
            else style.paint(style.fit("● WATCH"), "info")
        )
        lines += _wrapped(sign, d.verdict.summary, style, lead=LEAD, role="strong")
        lines += ["", *picture(d.curves, drawn_names(d.curves), None, style)]
    for judged in found:
        lines += [*_finding(judged, d, style), ""]
    lines += _not_checked(d, style, everything=everything or bool(words.serious(d.verdict)), full=everything)
    if words.serious(d.verdict):
        lines += _wrapped("Confidence", d.verdict.confidence_basis, style, lead=13)
    lines += _read_as(d, style, everything=everything)
    return "\n".join(line.rstrip() for line in lines).rstrip() + "\n"


def _head(d: Diagnosed, name: str, style: Style) -> Iterator[str]:
    span = words.span(d.verdict.source)
    if len(name) + 3 + len(span) < style.width:
        yield f"{style.paint(name, 'strong')}   {span}"
    else:
        yield style.paint(name, "strong")
        yield span
    recipe = words.recipe_of(d)
    title = words.format_title(d.verdict.source)
    yield style.paint(f"{recipe + '. ' if recipe else ''}{title}, read in {d.seconds:.1f} s.", "faint")
    ended = words.ending(d)
    if ended:
        yield from _wrapped("Ended", ended, style, lead=7)


def _finding(judged: Judged, d: Diagnosed, style: Style) -> Iterator[str]:
    f = judged.finding
    body = _rows(plain(f.summary), style.width - 2 - LEAD - SURE_COLUMNS)
    sure = style.paint(words.sure(f).rjust(SURE_COLUMNS), f.severity)
    for k, line in enumerate(body):
        sign = style.fit(SIGNS[f.severity]) if k == 0 else ""
        padded = line.ljust(style.width - 2 - LEAD - SURE_COLUMNS)
        tail = sure if k == len(body) - 1 else ""
        yield style.paint(sign.ljust(LEAD), f.severity) + style.paint(padded, "strong") + tail
    yield ""
    clean = d.verdict.last_clean_step
    state = ", over now" if judged.state == "recovered" else ""
    yield (
        f"{_INDENT}Since     {words.since(f)}{state}     "
        f"last clean step {'none' if clean is None else f'{clean:,}'}"
    )
    place = words.where(f)
    if place:
        yield from _wrapped(f"{_INDENT}Began at", place, style, lead=LEAD)
    named, family = words.cause(f)
    yield f"{_INDENT}Cause     {named}    {style.paint(family, 'faint')}"
    yield ""
    if f.severity != "info":
        cited = [e.signal.split(" ")[0].rstrip(",") for e in f.evidence]
        yield from picture(
            d.curves, drawn_names(d.curves, cited), Mark(f.onset, f.segment, f.severity), style
        )
    yield from _evidence(judged, style)
    if f.alternatives:
        lead = "Either" if f.cause == "undetermined" else "Less likely"
        yield from _wrapped(lead, words.others(f), style, lead=len(lead) + 2)
        yield ""
    yield style.paint("What to do", "strong")
    yield from _remedy(judged, style)
    yield ""
    yield style.paint("Test that decides", "strong")
    yield from _wrapped("", f.decisive_test, style, lead=2)
    if f.log_next:
        yield ""
        yield style.paint("Log next, to decide", "strong")
        for wish in f.log_next:
            yield from _wrapped("", f"{wish.text} ({wish.why})", style, lead=2)


def _evidence(judged: Judged, style: Style) -> Iterator[str]:
    evidence = judged.finding.evidence
    if not evidence:
        return
    wide = style.width - 2
    right = max(16, wide * 30 // 100)
    left = wide - right - 1
    middle = left - 13
    yield style.paint("Why", "strong") + " " * (left - 2) + style.paint("expected", "faint")
    for e in evidence[:MOST_EVIDENCE]:
        step = "" if e.step is None else f"{e.step:,}"
        texts = _rows(words.measured(e), middle)
        expected = _rows(plain(e.expected), right)
        for k in range(max(len(texts), len(expected))):
            text = texts[k] if k < len(texts) else ""
            side = expected[k] if k < len(expected) else ""
            lead = f"{_INDENT}{step if k == 0 else '':>9}  "
            yield f"{lead}{text:<{middle + 1}}{style.paint(side, 'faint')}"
    if len(evidence) > MOST_EVIDENCE:
        yield f"{'':>13}and {len(evidence) - MOST_EVIDENCE} more, see --json"
    yield ""


def _remedy(judged: Judged, style: Style) -> Iterator[str]:
    steps = words.steps_of(judged.finding.remedy.text)
    for k, step in enumerate(steps, 1):
        yield from _wrapped(
            f"{_INDENT}{k}." if len(steps) > 1 else "", step, style, lead=5 if len(steps) > 1 else 2
        )
    for framework, setting in words.settings_of(judged.finding):
        yield from _wrapped(f"{_INDENT}{framework}:", setting, style, lead=len(framework) + 4, role="name")


def _not_checked(d: Diagnosed, style: Style, *, everything: bool, full: bool) -> Iterator[str]:
    gaps = words.not_checked(d.verdict)
    if not gaps:
        return
    lead = "Not checked"
    if not everything:  # a healthy run has a short report
        rules = len({rule for gap in gaps for rule in gap.rules})
        text = f"{count(rules, 'rule')}: their signals are not logged (--full lists them)"
        yield from _wrapped(lead, text, style, lead=13, sign="warning")
        return
    for gap in gaps:
        yield from _wrapped(lead, gap.text(everything=full), style, lead=13, sign="warning")
        lead = ""


def _read_as(d: Diagnosed, style: Style, *, everything: bool) -> Iterator[str]:
    rows = words.understood(d.verdict.source)
    most = len(rows) if everything else MOST_NOTES
    for k, row in enumerate(rows[:most]):
        yield from _wrapped("Read as" if k == 0 else "", row, style, lead=13)
    if len(rows) > most:
        yield f"{'':13}and {count(len(rows) - most, 'more remark')}: --full"


def _wrapped(
    lead_text: str, text: str, style: Style, *, lead: int, role: str | None = None, sign: str | None = None
) -> Iterator[str]:
    """Text beside a lead of so many columns, wrapped under itself."""
    visible = len(lead_text) if "\x1b" not in lead_text else lead  # painted leads are as wide as asked
    head = style.paint(lead_text, sign) if sign else lead_text
    head += " " * (lead - visible) if "\x1b" not in lead_text else "  "
    for k, row in enumerate(_rows(plain(text), max(style.width - 2 - lead, 20))):
        shown = style.paint(row, role) if role else row
        yield (head if k == 0 else " " * lead) + shown


def _rows(text: str, width: int) -> list[str]:
    """Lines of a width; names of tensors and flags are never cut in two, so that they can be copied."""
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]
