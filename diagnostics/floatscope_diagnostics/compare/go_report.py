"""The decision on a terminal: the verdict, its gates, what to do next."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from floatscope_diagnostics.compare.gate import Gate, Go
from floatscope_diagnostics.compare.words import nats
from floatscope_diagnostics.reports.terminal import Style, plain

WIDTH = 88
LEAD = 14
SIGNS = {
    "go": ("✓ GO", "ok"), "no_go": ("▲ NO-GO", "critical"), "not_yet": ("● NOT YET", "warning"),
}  # fmt: skip
REFUSED = "○ CANNOT BE DECIDED", "warning"
MARKS = {"pass": "✓", "fail": "▲", "undecided": "●", "not_checked": "-"}
ROLES = {"pass": "ok", "fail": "critical", "undecided": "warning", "not_checked": "faint"}
NAMES = {
    "loss": "loss", "drift": "drift", "held_out": "held-out", "evals": "evals", "stability": "stability",
    "fp8_health": "findings", "speed": "speed", "cost": "cost",
}  # fmt: skip


def go_lines(go: Go, style: Style) -> Iterator[str]:
    """Line by line."""
    sign, role = sign_of(go)
    yield style.paint(sign, role)
    yield from _wrapped("  ", go.sentence)
    if go.next_step:
        yield from _wrapped("  ", f"Next: {go.next_step}")
    yield ""
    for gate in go.gates:
        if go.decidable or gate.name == "fp8_health":
            yield from _gate(gate, style)
    for row in go.evals:
        band = "" if row.low is None or row.high is None else f" [{row.low:+.2f}, {row.high:+.2f}]"
        text = (
            f"{row.name}: {row.run:.2f} against {row.baseline:.2f} %, {row.difference:+.2f}{band}; {row.how}"
        )
        yield from _wrapped(f"      {MARKS[row.state]} ", text)
    for refusal in go.refused:
        if refusal.sentence in go.sentence:
            continue
        yield from _wrapped(f"{'Refused' if refusal.blocks else 'Without':<{LEAD}}", refusal.sentence)
    yield from _wrapped(f"{'Limits':<{LEAD}}", limits_text(go))


def sign_of(go: Go) -> tuple[str, str]:
    """The verdict with its mark, and its role in colour."""
    return SIGNS[go.verdict] if go.decidable else REFUSED


def limits_text(go: Go) -> str:
    """The limits in one sentence."""
    shown = go.shown_limits
    said = [f"margin {nats(shown['margin_nats'])} nats ({shown['margin_from']})"]
    if go.limits.min_speedup is not None:
        said.append(f"speed-up at least {go.limits.min_speedup:g}")
    if go.limits.min_saving_pct is not None:
        said.append(f"saving per token at least {go.limits.min_saving_pct:g} %")
    if go.limits.min_net_saving_pct is not None:
        said.append(f"saving at equal loss at least {go.limits.min_net_saving_pct:g} %")
    if go.limits.price_ratio != 1.0:
        said.append(f"price ratio {go.limits.price_ratio:g}")
    said.append(f"a growing gap is carried on to: {shown['carried_on_to']}")
    if go.decidable and shown["pairs_if_equal"] is not None:
        said.append(f"pairs like these that an equal loss needs: {shown['pairs_if_equal']:,}")
    return "; ".join(said)


def _gate(gate: Gate, style: Style) -> Iterator[str]:
    lead = f"  {MARKS[gate.state]} {NAMES[gate.name]:<{LEAD - 4}}"
    lines = list(_wrapped(lead, gate.sentence))
    yield style.paint(lead, ROLES[gate.state]) + lines[0][len(lead) :]
    yield from lines[1:]


def _wrapped(lead: str, text: str) -> Iterator[str]:
    rows = textwrap.wrap(plain(text), max(WIDTH - len(lead), 20), break_on_hyphens=False) or [""]
    yield lead + rows[0]
    yield from (" " * len(lead) + row for row in rows[1:])
