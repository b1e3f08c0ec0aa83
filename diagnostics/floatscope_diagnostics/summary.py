"""The one sentence at the top of a verdict."""

from __future__ import annotations

from floatscope_diagnostics.rule import RunFacts
from floatscope_diagnostics.verdict import Judged


def summarize(findings: tuple[Judged, ...], facts: RunFacts, *, but: str = "") -> str:
    """What a tired engineer reads first.

    but: why finding nothing means little here, as a clause.
    """
    if facts.last_step is None:
        return "No step has been read yet."
    serious = [j for j in findings if j.finding.severity != "info" and j.state != "replaced"]
    span = f"steps {facts.first_step:,} to {facts.last_step:,}"
    if not serious:
        noted = f", with {len(findings)} note{'s' if len(findings) > 1 else ''}" if findings else ""
        return f"No fault found in {span}{noted}{f', but {but}' if but else ''}."
    top = max(serious, key=lambda j: (j.finding.severity == "critical", j.finding.confidence))
    more = len(serious) - 1
    tail = f" {more} more finding{'s' if more > 1 else ''}." if more else ""
    return top.finding.summary + tail
