"""The terminal report of one run: what, since when, where, why, what to do, what could not be checked."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from floatscope_diagnostics.curves import Curve
from floatscope_diagnostics.diagnose import Diagnosed
from floatscope_diagnostics.verdict import Judged

WIDTH = 78
CURVE_WIDTH = 48
BLOCKS = "▁▂▃▄▅▆▇█"
SIGNS = {"critical": "▲ CRITICAL", "warning": "▲ WARNING", "info": "● NOTE"}
_COLOURS = {"critical": "31;1", "warning": "33;1", "info": "36"}


@dataclass(frozen=True)
class Style:
    """colour: whether the output is a terminal that shows it."""

    colour: bool = False

    def paint(self, text: str, severity: str) -> str:
        return f"\x1b[{_COLOURS[severity]}m{text}\x1b[0m" if self.colour else text


def plain(text: str) -> str:
    """Text from a log without control characters, so that it cannot drive the terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)


def report(diagnosed: Diagnosed, style: Style) -> str:
    """The whole report."""
    verdict = diagnosed.verdict
    lines = [*_head(diagnosed), ""]
    shown = [j for j in verdict.findings if j.state != "replaced"]
    order = {"critical": 0, "warning": 1, "info": 2}
    shown.sort(key=lambda j: (order[j.finding.severity], -j.finding.confidence))
    serious = [j for j in shown if j.finding.severity != "info"]
    if not serious:
        lines += [f"✓ {verdict.summary}", ""]
        lines += list(_curves(diagnosed, None))
    for judged in shown:
        lines += [*_finding(judged, diagnosed, style), ""]
    lines += list(_not_checked(verdict.not_checked))
    for note in verdict.source.notes:
        lines += _wrapped("Note  ", plain(note))
    return "\n".join(lines).rstrip() + "\n"


def _head(d: Diagnosed) -> Iterator[str]:
    source = d.verdict.source
    name = plain(d.run.name or source.path or "run")
    span = (
        "no steps"
        if source.first_step is None
        else f"{source.steps:,} steps ({source.first_step:,} to {source.last_step:,})"
    )
    yield f"{name}   {span}, {source.tensors:,} tensors"
    recipe = d.run.recipe
    words = [plain(str(recipe[k])) for k in ("name", "fp8_format", "amax_compute_algo") if k in recipe]
    if "amax_history_len" in recipe:
        words.append(f"history {plain(str(recipe['amax_history_len']))}")
    shown = ", ".join(words) if words else "no recipe declared"
    yield f"{shown}. Format {source.format}, read in {d.seconds:.1f} s."


def _finding(judged: Judged, d: Diagnosed, style: Style) -> Iterator[str]:
    f = judged.finding
    sure = "cause open" if f.cause == "undetermined" else f"{100 * f.confidence:.0f} % sure"
    sign = SIGNS[f.severity]
    body = _rows(plain(f.summary), WIDTH - 12 - 12)
    for k, line in enumerate(body):
        lead = style.paint(sign.ljust(12), f.severity) if k == 0 else " " * 12
        yield f"{lead}{line.ljust(WIDTH - 12 - 12)}{sure:>12}" if k == 0 else f"{lead}{line}"
    yield ""
    clean = d.verdict.last_clean_step
    since = f"step {f.onset:,}" + (f" to {f.resolved - 1:,}" if f.resolved is not None else "")
    yield f"  Since     {since}     last clean step {'none' if clean is None else f'{clean:,}'}"
    if f.tensors:
        more = max(f.affected, len(f.tensors)) - 1
        where = plain(f.tensors[0]) + (
            f", then {more} more tensor{'s' if more > 1 else ''}" if more > 0 else ""
        )
        yield from _wrapped("  Began at  ", where + (f" ({f.order})" if f.order else ""))
    kind = f", {f.kind}" if f.kind else ""
    family = judged.to_json()["family"]
    yield f"  Cause     {f.cause}{kind}    {family}, {f.rule}"
    yield ""
    if f.severity != "info":
        yield from _curves(d, f.onset)
    yield "Why".ljust(58) + "expected"
    for e in f.evidence:
        step = "" if e.step is None else f"{e.step:,}"
        at = f" in {plain(e.tensor)}" if e.tensor else ""
        text = f"{plain(e.signal)} {_number(e.value)}{at}"
        rows = _rows(text, 44)
        yield f"  {step:>9}  {rows[0].ljust(45)} {e.expected}"
        for row in rows[1:]:
            yield f"  {'':>9}  {row}"
    yield ""
    if f.alternatives:
        others = ", ".join(f"{a.cause} {100 * a.confidence:.0f} %" for a in f.alternatives)
        yield from _wrapped("Either  " if f.cause == "undetermined" else "Less likely  ", others)
        yield ""
    yield "What to do"
    yield from _wrapped("  ", f.remedy.text)
    for framework, setting in f.remedy.settings.items():
        yield from _wrapped(f"  {framework}: ", setting)
    yield ""
    yield "Test that decides"
    yield from _wrapped("  ", f.decisive_test)
    if f.log_next:
        yield ""
        yield "Log next, to decide"
        for wish in f.log_next:
            yield from _wrapped("  ", f"{wish.text} ({wish.why})")


def _curves(d: Diagnosed, onset: int | None) -> Iterator[str]:
    drawn = [(name, c) for name, c in d.curves.series.items() if len(c.steps) > 1]
    for name, curve in drawn:
        if name != "loss" and max((v for v in curve.values if v == v), default=0.0) <= 0.0:
            continue
        first = next((v for v in curve.values if v == v), math.nan)
        last = curve.values[-1]
        end = "NaN" if last != last else f"{last:.4g}"
        yield f"  {name:<12}{first:>8.4g}  {_blocks(curve)}  {end}"
    if drawn:
        steps = drawn[0][1].steps
        left, right = f"{steps[0]:,}", f"{steps[-1]:,}"
        line = [" "] * CURVE_WIDTH
        if onset is not None and steps[-1] > steps[0]:
            at = round((onset - steps[0]) / (steps[-1] - steps[0]) * (CURVE_WIDTH - 1))
            at = min(max(at, 0), CURVE_WIDTH - 1)
            text = "^ onset" if at < CURVE_WIDTH - 7 else "onset ^"
            start = at if text[0] == "^" else at - 6
            for k, c in enumerate(text):
                if 0 <= start + k < CURVE_WIDTH:
                    line[start + k] = c
        yield f"  {left:>20}  {''.join(line)}  {right}"
        yield ""


def _blocks(curve: Curve) -> str:
    """CURVE_WIDTH characters; a bin with a NaN or Inf is a cross, one without data a blank."""
    values = [v for v in curve.values if v == v]
    if not values:
        return "x" * CURVE_WIDTH
    low, high = min(values), max(values)
    first, last = curve.steps[0], curve.steps[-1]
    cells: list[float | None] = [None] * CURVE_WIDTH
    bad = [False] * CURVE_WIDTH
    for step, value, broken in zip(curve.steps, curve.values, curve.bad, strict=True):
        k = round((step - first) / max(last - first, 1) * (CURVE_WIDTH - 1))
        bad[k] = bad[k] or broken
        here = cells[k]
        if value == value and (here is None or value > here):
            cells[k] = value
    out = []
    for cell, broken in zip(cells, bad, strict=True):
        if broken:
            out.append("✕")
        elif cell is None:
            out.append(out[-1] if out and out[-1] in BLOCKS else " ")
        else:
            share = 0.0 if high <= low else (cell - low) / (high - low)
            out.append(BLOCKS[min(int(share * len(BLOCKS)), len(BLOCKS) - 1)])
    return "".join(out)


def _not_checked(entries: Sequence[Any]) -> Iterator[str]:
    """By reason the signals that are missing, each with the rules that need it."""
    reasons: dict[str, dict[str, list[str]]] = {}
    for entry in entries:
        for need in entry["needs"]:
            rules = reasons.setdefault(entry["why"], {}).setdefault(need, [])
            if entry["rule"] not in rules:
                rules.append(entry["rule"])
    lead = "Not checked  "
    for why, needs in reasons.items():
        yield from _wrapped(lead, f"{why}: " + "; ".join(f"{n} ({', '.join(r)})" for n, r in needs.items()))
        lead = " " * len(lead)
    if entries:
        yield ""


def _number(value: float | str | None) -> str:
    if value is None:
        return "not logged"
    if isinstance(value, str):
        return plain(value)
    return f"{value:.4g}"


def _wrapped(lead: str, text: str) -> list[str]:
    rows = _rows(plain(text), max(WIDTH - len(lead), 20))
    return [lead + rows[0], *(" " * len(lead) + row for row in rows[1:])]


def _rows(text: str, width: int) -> list[str]:
    """Lines of a width; names of tensors and flags are never cut in two, so that they can be copied."""
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]
