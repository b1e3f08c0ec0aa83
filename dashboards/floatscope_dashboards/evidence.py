"""The evidence card: what speaks for the worst finding, what else was considered, which checks were clean,
and which could not look."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from floatscope.protocol.names import STATS
from floatscope_dashboards.checks import PARTLY, fired_rules, unable_rules
from floatscope_dashboards.findings import (
    IN_ENGLISH,
    Alternative,
    Evidence,
    Finding,
    open_findings,
    read_findings,
)
from floatscope_dashboards.loss_figure import Panel
from floatscope_dashboards.say import Say
from floatscope_dashboards.wording import as_text, signal_of

TENSOR_STATS = frozenset((*STATS, "headroom_log2"))
"""What the server has as a series per tensor: the stored statistics, and headroom, which it derives."""
MAX_NEEDS = 4
"""Signals named per rule that could not look; the rest is counted."""


@dataclass(frozen=True)
class Unchecked:
    """A rule that could not look at all or not at everything (partly), which is not the same as a rule that
    saw nothing. title: of the rule, "" if that is not known.
    """

    rule: str
    needs: str
    why: str
    title: str = ""
    partly: bool = False


@dataclass(frozen=True)
class Clean:
    """A rule that had what it needs and found nothing."""

    rule: str
    title: str


@dataclass(frozen=True)
class EvidenceCard:
    """The card beside the loss chart. `lead` is None while nothing is open."""

    lead: Finding | None
    evidence: tuple[Evidence, ...]
    alternatives: tuple[Alternative, ...]
    unchecked: tuple[Unchecked, ...]
    clean: tuple[Clean, ...] = ()

    @property
    def unable_rules(self) -> int:
        """How many rules that is: one rule may lack several things, and has a line for each."""
        return len({item.rule for item in self.unable})

    @property
    def partly_rules(self) -> int:
        """As ``unable_rules``, of those that looked at a part."""
        return len({item.rule for item in self.partly})

    @property
    def unable(self) -> tuple[Unchecked, ...]:
        return tuple(item for item in self.unchecked if not item.partly)

    @property
    def partly(self) -> tuple[Unchecked, ...]:
        return tuple(item for item in self.unchecked if item.partly)


def evidence_card(
    verdict: Mapping[str, Any], say: Say = IN_ENGLISH, *, rules: Mapping[str, str] | None = None
) -> EvidenceCard:
    """The card for a verdict: of its worst open finding, else of the worst finding there was. rules: title of
    every rule there is, by code; without it none is named as clean.
    """
    titles = rules or {}
    findings = read_findings(verdict, say)
    lead = next(iter(open_findings(findings)), next(iter(findings), None))
    busy = unable_rules(verdict) | fired_rules(verdict)
    return EvidenceCard(
        lead=lead,
        evidence=lead.evidence if lead else (),
        alternatives=lead.alternatives if lead else (),
        unchecked=_unchecked(verdict, titles, say),
        clean=tuple(
            Clean(code, say.engine(title)) for code, title in sorted(titles.items()) if code not in busy
        ),
    )


def _unchecked(verdict: Mapping[str, Any], titles: Mapping[str, str], say: Say) -> tuple[Unchecked, ...]:
    items = verdict.get("not_checked")
    found = []
    for item in items if isinstance(items, (list, tuple)) else ():
        if not isinstance(item, Mapping):
            continue
        needs = item.get("needs")
        names = [str(name) for name in needs] if isinstance(needs, (list, tuple)) else [as_text(needs)]
        names = [say.engine(name) for name in names if name]
        shown = ", ".join(names[:MAX_NEEDS])
        if len(names) > MAX_NEEDS:
            shown = say("{names} and {n} more", names=shown, n=len(names) - MAX_NEEDS)
        rule, why = as_text(item.get("rule")), as_text(item.get("why"))
        title = say.engine(titles.get(rule, ""))
        found.append(Unchecked(rule, shown, say.engine(why), title, why.startswith(PARTLY)))
    return tuple(found)


def proof_panel(card: EvidenceCard) -> tuple[Panel, str] | None:
    """The panel under the loss, with the statistic's name: the first evidence that is a tensor's
    statistic."""
    for item in card.evidence:
        if item.tensor and item.signal in TENSOR_STATS:
            signal = signal_of(item.signal)
            return Panel(item.tensor, item.label, signal.unit), item.signal
    return None
