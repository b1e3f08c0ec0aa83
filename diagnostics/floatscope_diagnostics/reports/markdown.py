"""A short summary in Markdown, for the summary page of a CI job or a pull request."""

from __future__ import annotations

from collections.abc import Sequence

from floatscope_diagnostics.diagnose import Diagnosed
from floatscope_diagnostics.gather import Unread
from floatscope_diagnostics.reports import words
from floatscope_diagnostics.reports.numbers import count
from floatscope_diagnostics.reports.run_table import counts, loss_ends
from floatscope_diagnostics.reports.terminal import plain
from floatscope_diagnostics.verdict import STATUSES

SIGNS = {"critical": "▲", "warning": "▲", "info": "●", "watch": "●", "healthy": "✓"}
MOST_RUNS = 50
MOST_FINDINGS = 20  # a job summary may hold 1 MiB


def summary(done: Sequence[Diagnosed], unread: Sequence[Unread]) -> str:
    """The whole text: a table of the runs, then each warning and critical finding with what to do."""
    lines = ["## Training logs", ""]
    if done:
        lines += [counts(done) + ".", "", "| | run | steps | loss | verdict |", "|---|---|---:|---|---|"]
    names = words.names_of(done)
    order = sorted(range(len(done)), key=lambda k: -STATUSES.index(done[k].verdict.status))
    for k in order[:MOST_RUNS]:
        v = done[k].verdict
        ends = loss_ends(done[k].curves).replace(">", "to")
        cells = (
            f"{SIGNS[v.status]} {v.status}",
            code(names[k]),
            f"{v.source.steps:,}",
            ends,
            text(v.summary),
        )
        lines.append("| " + " | ".join(cells) + " |")
    if len(order) > MOST_RUNS:
        lines.append(f"\nand {count(len(order) - MOST_RUNS, 'more run')}")
    findings = [(names[k], done[k], j) for k in order for j in words.serious(done[k].verdict)]
    for name, d, judged in findings[:MOST_FINDINGS]:
        f = judged.finding
        named, family = words.cause(f)
        clean = d.verdict.last_clean_step
        lines += [
            "",
            f"### {SIGNS[f.severity]} {text(f.summary)}",
            "",
            f"{code(name)}, since {words.since(f)}, last clean step "
            f"{'none' if clean is None else f'{clean:,}'}. "
            f"Cause: {text(named)} ({text(family)}), {words.sure(f)}.",
        ]
        if f.tensors:
            lines.append(f"Began at {code(words.where(f))}.")
        lines.append("")
        lines += [f"{k}. {text(step)}" for k, step in enumerate(words.steps_of(f.remedy.text), 1)]
    if len(findings) > MOST_FINDINGS:
        lines += ["", f"and {count(len(findings) - MOST_FINDINGS, 'more finding')}"]
    if unread:
        lines += ["", f"### {count(len(unread), 'input')} could not be read", ""]
        lines += [f"- {code(u.path)}: {text(u.error)}" for u in unread]
    return "\n".join(lines) + "\n"


def text(raw: str) -> str:
    """Text from a log with nothing left that Markdown or HTML would act on."""
    out = plain(raw).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{c}" if c in r"\`*_[]|~#@" else c for c in out)


def code(raw: str) -> str:
    """A name as code."""
    inner = plain(raw).replace("`", "'").replace("|", "\\|")
    return f"`{inner}`"
