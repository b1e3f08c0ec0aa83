"""The report as one page that opens offline: no script, no request, light and dark, printable on A4."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from html import escape
from importlib import metadata, resources

from floatscope_diagnostics.diagnose import Diagnosed
from floatscope_diagnostics.gather import Unread
from floatscope_diagnostics.reports import words
from floatscope_diagnostics.reports.numbers import count
from floatscope_diagnostics.reports.run_table import counts, loss_ends, outcome
from floatscope_diagnostics.reports.svg import Stretch, chart
from floatscope_diagnostics.reports.terminal import plain
from floatscope_diagnostics.verdict import STATUSES, Judged

# Nothing may be fetched, run or sent, whatever a name in the log manages to say.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_TRIANGLE = '<path d="M8 1.2 15.4 14.4H.6z" fill="currentColor"/>'
_SIGNS = {
    "critical": _TRIANGLE,
    "warning": '<path d="M8 .8 15.2 8 8 15.2.8 8z" fill="currentColor"/>',
    "info": '<circle cx="8" cy="8" r="6.4" fill="currentColor"/>',
    "watch": '<circle cx="8" cy="8" r="6.4" fill="currentColor"/>',
    "healthy": '<path d="m2 8.6 4 4 8-9" fill="none" stroke="currentColor" stroke-width="2.6"/>',
}
MOST_STRETCHES = 4
MOST_ARTICLES = 100  # runs in detail, worst first; a page of 4 MB still opens at once


def page(
    done: Sequence[Diagnosed],
    unread: Sequence[Unread],
    *,
    code: int | None = None,
    preface: Iterable[str] = (),
) -> str:
    """The whole document. code: exit code of the command, shown at the end.  preface: HTML before all."""
    names = words.names_of(done)
    order = sorted(range(len(done)), key=lambda k: -STATUSES.index(done[k].verdict.status))
    worst = done[order[0]].verdict.status if order else "critical"
    title = names[0] if len(done) == 1 else counts(done) if done else "no run could be read"
    body = [_top(), *preface, *_index(done, names, order), *_unread(unread)]
    for k in order[:MOST_ARTICLES]:
        body += _run(done[k], names[k], number=k + 1)
    style = resources.files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    mark = {"critical": "▲", "warning": "◆", "watch": "●", "healthy": "✓"}[worst]
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            f'<title>{mark} {text(title)} - floatscope</title><link rel="icon" href="data:,">',
            f"<style>{style}</style></head><body><main>",
            *body,
            _foot(code),
            "</main></body></html>\n",
        ]
    )


def text(raw: str) -> str:
    """Text from outside as text."""
    return escape(plain(raw))


def name(raw: str) -> str:
    """A long name as text that may break after its separators."""
    out = text(raw)
    for c in "/_.":
        out = out.replace(c, f"{c}<wbr>")
    return out


def _top() -> str:
    now = datetime.now(timezone.utc).strftime("%d %b %Y, %H:%M UTC")
    return f'<header class="top"><h1>Training log report</h1><p>{now}</p></header>'


def _foot(code: int | None) -> str:
    end = "" if code is None else f"<span>Exit code {code}</span>"
    version = metadata.version("floatscope")
    return f'<footer class="ft"><span>floatscope {version}, floatscope diagnose</span>{end}</footer>'


def _sign(kind: str, *, word: bool = True) -> str:
    said = f'<span class="sr">{kind}</span>' if word else ""
    return (
        f'<span class="{kind}"><svg viewBox="0 0 16 16" aria-hidden="true">{_SIGNS[kind]}</svg>{said}</span>'
    )


def _index(done: Sequence[Diagnosed], names: Sequence[str], order: Sequence[int]) -> Iterator[str]:
    if len(done) < 2:
        return
    yield f'<nav class="paper" aria-label="Runs"><h2>{text(counts(done))}</h2>'
    yield '<div class="scroll"><table class="idx"><thead><tr><th><span class="sr">Status</span></th>'
    yield '<th>Run</th><th class="r">Steps</th><th class="r">Loss</th><th>Verdict</th></tr></thead><tbody>'
    for place, k in enumerate(order):
        d = done[k]
        called = name(names[k])
        if place < MOST_ARTICLES:
            called = f'<a href="#run-{k + 1}">{called}</a>'
        yield (
            f'<tr><td class="s">{_sign(d.verdict.status)}</td>'
            f"<td>{called}</td>"
            f'<td class="r">{d.verdict.source.steps:,}</td><td class="r">{text(loss_ends(d.curves))}</td>'
            f"<td>{text(outcome(d))}</td></tr>"
        )
    yield "</tbody></table></div></nav>"


def _unread(unread: Sequence[Unread]) -> Iterator[str]:
    if unread:
        yield f'<section class="paper unread"><h2>{count(len(unread), "input")} could not be read</h2><ul>'
        yield from (f"<li><b>{text(u.path)}</b>: {text(u.error)}</li>" for u in unread)
        yield "</ul></section>"


def _run(d: Diagnosed, called: str, *, number: int) -> Iterator[str]:
    found = words.serious(d.verdict)
    recipe = words.recipe_of(d)
    described = ", ".join(part for part in (words.span(d.verdict.source), recipe) if part)
    yield f'<article class="paper" id="run-{number}" aria-labelledby="name-{number}"><div class="rh">'
    yield f'<h2 id="name-{number}">{name(called)}</h2><span>{text(described)}</span></div>'
    if not found:
        status = d.verdict.status
        yield f'<div class="vd">{_sign(status)}<div><h3>{text(d.verdict.summary)}</h3></div></div>'
    stretches = [
        Stretch(
            d.curves.at(j.finding.onset, j.finding.segment),
            None if j.finding.resolved is None else d.curves.at(j.finding.resolved, j.finding.segment),
            j.finding.severity,
            k,
            j.finding.onset,
        )
        for k, j in enumerate(found[:MOST_STRETCHES], 1)
    ]
    drawing = chart(d.curves, stretches, everything=bool(found))
    for k, judged in enumerate(found):
        yield f'<section class="{"again" if k else ""}">'
        yield from _finding(judged, d, number=k + 1, drawing=drawing if k == 0 else "")
        yield "</section>"
    if not found:
        yield drawing
    yield from _notes(d)
    yield from _read_as(d)
    yield "</article>"


def _finding(judged: Judged, d: Diagnosed, *, number: int, drawing: str) -> Iterator[str]:
    f = judged.finding
    confident = f.cause != "undetermined"
    sure = (
        f"<b>{100 * f.confidence:.0f}&#8239;%</b><small>sure</small>"
        if confident
        else "<b>open</b><small>cause</small>"
    )
    named, family = words.cause(f)
    yield f'<div class="vd">{_sign(f.severity)}<div><h3>{name(f.summary)}</h3></div>'
    yield f'<div class="cf">{sure}</div></div>'
    clean = d.verdict.last_clean_step
    over = "over now" if judged.state == "recovered" else f"proven at step {f.detected:,}"
    layer = words.where(f) or "the whole run"
    facts = (
        ("Since when", words.since(f).capitalize(), over),
        ("Where it began", layer, ""),
        ("Cause", named, family),
        ("Last clean step", "none" if clean is None else f"{clean:,}", ""),
    )
    yield '<dl class="f4">'
    for head, value, small in facts:
        below = f"<small>{text(small)}</small>" if small else ""
        yield f"<div><dt>{head}</dt><dd>{name(value)}{below}</dd></div>"
    yield "</dl>"
    yield drawing
    if f.evidence:
        yield "<h4>Evidence</h4><table><thead><tr><th>Measured</th><th>Expected</th>"
        yield '<th class="r">Step</th></tr></thead><tbody>'
        for e in f.evidence:
            step = "" if e.step is None else f"{e.step:,}"
            yield f"<tr><td>{name(words.measured(e))}</td><td>{text(e.expected)}</td>"
            yield f'<td class="r">{step}</td></tr>'
        yield "</tbody></table>"
    yield '<div class="cols"><div><h4>What to do</h4><ol>'
    yield from (f"<li>{text(step)}</li>" for step in words.steps_of(f.remedy.text))
    yield "</ol>"
    settings = words.settings_of(f)
    if settings:
        yield '<dl class="set">'
        yield from (f"<div><dt>{text(head)}</dt><dd>{text(value)}</dd></div>" for head, value in settings)
        yield "</dl>"
    yield f"</div><div><h4>Test that decides</h4><p>{text(f.decisive_test)}</p>"
    if f.alternatives:
        yield f"<h4>{'Other explanations' if confident else 'Either'}</h4><table><tbody>"
        for a in f.alternatives:
            yield f"<tr><td>{name(a.cause)}</td><td>{text(a.against)}</td>"
            yield f'<td class="r">{100 * a.confidence:.0f}&#8239;%</td></tr>'
        yield "</tbody></table>"
    if f.log_next:
        yield "<h4>Log next, to decide</h4><ul>"
        yield from (f"<li>{text(w.text)} ({text(w.why)})</li>" for w in f.log_next)
        yield "</ul>"
    yield "</div></div>"


def _notes(d: Diagnosed) -> Iterator[str]:
    notes = [j for j in words.shown(d.verdict) if j.finding.severity == "info"]
    if notes:
        yield "<h4>Notes</h4><table><tbody>"
        for j in notes:
            yield f'<tr><td class="s">{_sign("info")}</td><td>{text(j.finding.summary)}</td>'
            yield f'<td class="r">{words.since(j.finding)}</td></tr>'
        yield "</tbody></table>"


def _read_as(d: Diagnosed) -> Iterator[str]:
    rows: list[tuple[str, list[str]]] = []
    ended = words.ending(d)
    if ended:
        rows.append(("Ended", [ended]))
    gaps = [gap.text(everything=True) for gap in words.not_checked(d.verdict)]
    if gaps and words.serious(d.verdict):
        rows.append(("Not checked", gaps))
    elif gaps:
        rules = {rule for gap in words.not_checked(d.verdict) for rule in gap.rules}
        rows.append(("Not checked", [f"{count(len(rules), 'rule')}: their signals are not logged"]))
    title = words.format_title(d.verdict.source)
    rows.append(("Read as", [title, *words.understood(d.verdict.source)]))
    if words.serious(d.verdict):
        rows.append(("Confidence", [d.verdict.confidence_basis]))
    yield '<dl class="kv">'
    for head, values in rows:
        yield f"<dt>{head}</dt><dd>" + "".join(f"<p>{text(v)}</p>" for v in values) + "</dd>"
    yield "</dl>"
