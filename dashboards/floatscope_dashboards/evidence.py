"""The evidence card: what speaks for the worst finding, what else was considered, what could not be
checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from floatscope.protocol.names import STATS
from floatscope_dashboards.findings import Alternative, Evidence, Finding, open_findings, read_findings
from floatscope_dashboards.loss_figure import Panel
from floatscope_dashboards.wording import as_text, signal_of

TENSOR_STATS = frozenset((*STATS, "headroom_log2"))
"""What the server has as a series per tensor: the stored statistics, and headroom, which it derives."""
MAX_NEEDS = 4
"""Signals named per rule that could not look; the rest is counted."""


@dataclass(frozen=True)
class Unchecked:
    """A rule that could not look, which is not the same as a rule that saw nothing."""

    rule: str
    needs: str
    why: str


@dataclass(frozen=True)
class EvidenceCard:
    """The card beside the loss chart. `lead` is None while nothing is open."""

    lead: Finding | None
    evidence: tuple[Evidence, ...]
    alternatives: tuple[Alternative, ...]
    unchecked: tuple[Unchecked, ...]


def evidence_card(verdict: Mapping[str, Any]) -> EvidenceCard:
    """The card for a verdict: of its worst open finding, else of the worst finding there was."""
    findings = read_findings(verdict)
    lead = next(iter(open_findings(findings)), next(iter(findings), None))
    return EvidenceCard(
        lead=lead,
        evidence=lead.evidence if lead else (),
        alternatives=lead.alternatives if lead else (),
        unchecked=_unchecked(verdict),
    )


def _unchecked(verdict: Mapping[str, Any]) -> tuple[Unchecked, ...]:
    items = verdict.get("not_checked")
    found = []
    for item in items if isinstance(items, (list, tuple)) else ():
        if not isinstance(item, Mapping):
            continue
        needs = item.get("needs")
        names = [str(name) for name in needs] if isinstance(needs, (list, tuple)) else [as_text(needs)]
        names = [name for name in names if name]
        shown = ", ".join(names[:MAX_NEEDS])
        if len(names) > MAX_NEEDS:
            shown += f" and {len(names) - MAX_NEEDS} more"
        found.append(Unchecked(as_text(item.get("rule")), shown, as_text(item.get("why"))))
    return tuple(found)


def proof_panel(card: EvidenceCard) -> tuple[Panel, str] | None:
    """The panel under the loss, with the statistic's name: the first evidence that is a tensor's
    statistic."""
    for item in card.evidence:
        if item.tensor and item.signal in TENSOR_STATS:
            signal = signal_of(item.signal)
            return Panel(item.tensor, signal.label, signal.unit), item.signal
    return None
