"""Rules of a run counted: those that looked, those that could not, and those that found something."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from floatscope_dashboards.findings import read_findings
from floatscope_dashboards.views import RunView
from floatscope_dashboards.wording import as_text

PARTLY = "missing"
"""How the diagnosis begins its reason when a rule could look at some tensors but not at all."""


@dataclass(frozen=True)
class CheckCounts:
    """total: rules there are, 0 if that is not known. unable: rules that lack what they need altogether."""

    total: int
    unable: int
    fired: int

    @property
    def looked(self) -> int:
        return max(0, self.total - self.unable)


def check_counts(view: RunView) -> CheckCounts:
    """The rules of `view`, as its verdict has them."""
    return CheckCounts(len(view.facts.rules), len(unable_rules(view.verdict)), len(fired_rules(view.verdict)))


def unable_rules(verdict: Mapping[str, Any]) -> frozenset[str]:
    """Codes of rules that lacked something altogether; part of the tensors is not that."""
    items = verdict.get("not_checked")
    return frozenset(
        as_text(item.get("rule"))
        for item in (items if isinstance(items, (list, tuple)) else ())
        if isinstance(item, Mapping) and not as_text(item.get("why")).startswith(PARTLY)
    )


def fired_rules(verdict: Mapping[str, Any]) -> frozenset[str]:
    """Codes of rules with a finding, also one that has recovered."""
    return frozenset(item.rule for item in read_findings(verdict))
