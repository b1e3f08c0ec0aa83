"""The decision as one page to print: no script, nothing to fetch, light and dark."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime, timezone
from html import escape
from importlib import metadata, resources

import numpy as np

from floatscope_diagnostics import reports
from floatscope_diagnostics.compare.gate import Go
from floatscope_diagnostics.compare.go_report import MARKS, NAMES, limits_text, sign_of
from floatscope_diagnostics.compare.judge import Comparison
from floatscope_diagnostics.compare.settled import settled
from floatscope_diagnostics.compare.words import sentence, signed
from floatscope_diagnostics.reports.terminal import plain

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_CLASS = {"go": "healthy", "no_go": "critical", "not_yet": "warning"}
_GATE_CLASS = {"pass": "healthy", "fail": "critical", "undecided": "warning", "not_checked": ""}
_STATES = {"pass": "pass", "fail": "fail", "undecided": "cannot tell yet", "not_checked": "not judged"}
_WHOLE = 'style="white-space:nowrap"'
WIDTH, HEIGHT, LEFT, BINS = 700, 150, 64, 160


def go_page(c: Comparison, go: Go) -> str:
    """The whole document."""
    sign, _role = sign_of(go)
    style = resources.files(reports).joinpath("page.css").read_text(encoding="utf-8")
    now = datetime.now(timezone.utc).strftime("%d %b %Y, %H:%M UTC")
    names = f"{_text(c.run.name)} against {_text(c.base.name)}"
    body = [
        f'<header class="top"><h1>Go or no-go</h1><p>{now}</p></header><article class="paper">',
        f'<div class="rh"><h2>{names}</h2><span>{_span(c)}</span></div>',
        f'<div class="vd"><span class="{_CLASS[go.verdict]}" aria-hidden="true">{sign[0]}</span><div>'
        f"<h3>{_text(sign[2:])}</h3><p>{_text(go.sentence)}</p>",
        f"<p><b>Next:</b> {_text(go.next_step)}</p>" if go.next_step else "",
        "</div></div>",
        *_gates(go),
        *_evals(go),
        *_chart(c, go),
        *_facts(c, go),
        "</article>",
        f'<footer class="ft"><span>floatscope {metadata.version("floatscope")}, floatscope compare</span>'
        "</footer>",
    ]
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            f'<title>{sign} {names} - floatscope</title><link rel="icon" href="data:,">',
            f"<style>{style}</style></head><body><main>",
            *(part for part in body if part),
            "</main></body></html>\n",
        ]
    )


def _gates(go: Go) -> Iterator[str]:
    yield "<h4>Gates</h4><table><thead><tr><th></th><th>Gate</th><th>State</th><th>Found</th></tr></thead>"
    yield "<tbody>"
    for gate in go.gates:
        yield (
            f'<tr><td class="s {_GATE_CLASS[gate.state]}" aria-hidden="true">{MARKS[gate.state]}</td>'
            f"<td {_WHOLE}>{NAMES[gate.name]}</td><td {_WHOLE}>{_STATES[gate.state]}</td>"
            f"<td>{_text(gate.sentence)}</td></tr>"
        )
    yield "</tbody></table>"


def _evals(go: Go) -> Iterator[str]:
    if not go.evals:
        return
    yield '<h4>Evaluations</h4><table><thead><tr><th>Task</th><th class="r">Run, %</th>'
    yield '<th class="r">Baseline, %</th><th class="r">Difference, points</th><th>Basis</th></tr></thead>'
    yield "<tbody>"
    for row in go.evals:
        band = "" if row.low is None or row.high is None else f" [{row.low:+.2f}, {row.high:+.2f}]"
        yield (
            f'<tr><td>{_text(row.name)}</td><td class="r">{row.run:.2f}</td>'
            f'<td class="r">{row.baseline:.2f}</td>'
            f'<td class="r">{row.difference:+.2f}{band}</td><td>{_text(row.how)}</td></tr>'
        )
    yield "</tbody></table>"


def _facts(c: Comparison, go: Go) -> Iterator[str]:
    said = sentence(c) if go.decidable else "Not judged: the two runs cannot be compared."
    rows = [("Limits", limits_text(go)), ("Difference", said), ("Paired", c.pairs.why)]
    first = c.tensors.first[0] if c.tensors.first else None
    if first is not None:
        rows.append(("First tensor", f"{first.tensor} at step {first.step:,} ({first.stat}, {first.order})"))
    rows += [
        ("Refused" if r.blocks else "Without", r.sentence)
        for r in go.refused
        if r.sentence not in go.sentence
    ]
    yield '<dl class="kv">'
    yield from (f"<dt>{head}</dt><dd>{_text(said)}</dd>" for head, said in rows)
    yield "</dl>"


def _chart(c: Comparison, go: Go) -> Iterator[str]:
    """The paired difference as means of neighbours, with the margin."""
    good = np.isfinite(c.pairs.gap)
    step, gap = c.pairs.step[good], c.pairs.gap[good]
    if len(gap) < 8:
        return
    count = min(BINS, len(gap))
    means = np.array([float(np.mean(part)) for part in np.array_split(gap, count)])
    at = np.array([float(np.mean(part)) for part in np.array_split(step, count)])
    margin = float(go.shown_limits["margin_nats"])
    counted = settled(c).step
    late = means[at >= counted[0]] if len(counted) else means
    ends = np.quantile(late if len(late) else means, (0.02, 0.98))  # single loud steps are cut off
    low, high = min(float(ends[0]), -margin) - 0.3 * margin, max(float(ends[1]), margin) + 0.3 * margin
    cut = ", loud steps cut off" if float(means.min()) < low or float(means.max()) > high else ""
    means = np.clip(means, low, high)
    span = high - low
    if not (0.0 < span < math.inf) or at[-1] == at[0]:
        return

    def y(value: float) -> str:
        return f"{8 + (HEIGHT - 30) * (high - value) / span:.1f}"

    path = " ".join(
        f"{LEFT + (WIDTH - LEFT - 8) * (x - at[0]) / (at[-1] - at[0]):.1f},{y(v)}"
        for x, v in zip(at.tolist(), means.tolist(), strict=True)
    )
    start = f"judged from step {counted[0]:,} on" if len(counted) else "nothing is judged yet"
    yield f"<h4>Loss of the run minus that of the baseline, nats{cut}</h4>"
    yield f'<svg class="ch" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Paired loss difference">'
    for value in (margin, 0.0, -margin):
        kind, said, high_at = ("grid", signed(value), y(value)) if value else ("tick", "0", y(value))
        yield f'<line class="{kind}" x1="{LEFT}" x2="{WIDTH - 8}" y1="{high_at}" y2="{high_at}"/>'
        if value or (HEIGHT - 30) * margin / span > 12.0:  # else the labels would stand on each other
            yield f'<text x="{LEFT - 6}" y="{high_at}" dy="4" text-anchor="end">{said}</text>'
    yield f'<polyline class="l1" points="{path}"/>'
    yield f'<text x="{LEFT}" y="{HEIGHT - 4}">step {step[0]:,}</text>'
    yield f'<text x="{(WIDTH + LEFT) // 2}" y="{HEIGHT - 4}" text-anchor="middle">{start}</text>'
    yield f'<text x="{WIDTH - 8}" y="{HEIGHT - 4}" text-anchor="end">{step[-1]:,}</text></svg>'


def _span(c: Comparison) -> str:
    return f"steps {c.pairs.step[0]:,} to {c.pairs.step[-1]:,}"


def _text(raw: str) -> str:
    return escape(plain(raw))
