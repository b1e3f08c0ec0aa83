"""What could not be checked and why: a rule that could not look is not a rule that saw nothing."""

from __future__ import annotations

from typing import Any

from floatscope_diagnostics.rule import Need, Rule, RunFacts


def unchecked(rules: tuple[Rule, ...], facts: RunFacts) -> tuple[dict[str, Any], ...]:
    """One entry per rule that misses signals: ``{"rule", "needs", "why"}``."""
    out = []
    for rule in rules:
        missing = [need for need in rule.needs if not facts.saw(need)]
        if missing:
            out.append({"rule": rule.code, "needs": [_text(n) for n in missing], "why": "not logged"})
        if rule.needs_baseline and not facts.has_baseline:
            out.append(
                {
                    "rule": rule.code,
                    "needs": ["a baseline run, or scalar ref_loss"],
                    "why": "no baseline is set and ref_loss is not logged",
                }
            )
        if rule.needs_ranks and facts.ranks < 2:
            why = (
                f"only {facts.ranks} of {facts.world_size} ranks is logged"
                if facts.world_size > 1
                else "one rank only"
            )
            out.append({"rule": rule.code, "needs": ["the same scalars from two ranks or more"], "why": why})
    return tuple(out)


def _text(need: Need) -> str:
    return f"*/{'|'.join(need.roles)} {need.signal}" if need.roles else need.signal
