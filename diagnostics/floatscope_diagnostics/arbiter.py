"""From what the rules say one by one to the incidents of a run: one incident, one finding, its rivals as
alternatives.

An earlier finding explains a later one when the later cause is among the consequences the rule lists
(``explains``) and the earlier one was still going on, or had ended less than MEMORY_STEPS before. Findings
that begin together are rivals: the most confident wins, the others become its alternatives. Below CONFIDENT
the winner is ``undetermined``, with the two best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from floatscope_diagnostics.rule import SEVERITIES, Alternative, Finding, Remedy

RIVAL_STEPS = (
    2  # faults cross the network inside one step; what follows by +1 or +2 belongs to the same incident
)
MEMORY_STEPS = (
    64  # consequences such as an aged history come late; the longest measured cascade was 2 x 32 steps
)
CONFIDENT = 0.6  # below it the answer is undetermined, with the two best hypotheses and the test between them
FOREVER = 1 << 62


def judge(candidates: Sequence[Finding]) -> list[Finding]:
    """The findings of a run, in order of onset."""
    merged = _merge_ranks(candidates)
    remaining = sorted(merged, key=_order)
    kept: list[Finding] = []
    for finding in remaining:
        rivals = [k for k in kept if _same_incident(k, finding)]
        reason = [k for k in remaining if k is not finding and _explains(k, finding)]
        if reason or (rivals and finding.severity == "info"):
            continue
        if rivals:
            winner = rivals[0]
            kept[kept.index(winner)] = _with_rival(winner, finding)
            continue
        kept.append(finding)
    return sorted(
        (_undetermined(k) for k in kept), key=lambda f: (f.segment, f.onset, -f.confidence, f.cause)
    )


def _order(f: Finding) -> tuple[int, float, int, str, str, int]:
    return (f.segment, -f.confidence, f.onset, f.cause, f.kind or "", -1 if f.rank is None else f.rank)


def _end(f: Finding) -> int:
    return FOREVER if f.last is None else f.last


def _explains(cause: Finding, effect: Finding) -> bool:
    if effect.cause not in cause.explains or cause.segment > effect.segment:
        return False
    if cause.cause in effect.explains and _order(effect) < _order(cause):
        return False  # each could explain the other: the surer one stays
    if cause.cause == effect.cause:
        return False
    later = effect.onset >= cause.onset or cause.segment < effect.segment
    return later and effect.onset <= _end(cause) + MEMORY_STEPS


def _same_incident(a: Finding, b: Finding) -> bool:
    if a.segment != b.segment:
        return False
    if a.cause == b.cause:
        return abs(a.onset - b.onset) <= MEMORY_STEPS and not (
            _end(a) + RIVAL_STEPS < b.onset or _end(b) + RIVAL_STEPS < a.onset
        )
    return abs(a.onset - b.onset) <= RIVAL_STEPS


def _with_rival(winner: Finding, rival: Finding) -> Finding:
    alternatives = winner.alternatives
    if rival.cause != winner.cause and all(a.cause != rival.cause for a in alternatives):
        against = f"weaker evidence ({rival.summary})"
        share = round(rival.confidence * (1.0 - winner.confidence), 4)
        alternatives = (*alternatives, Alternative(rival.cause, share, against))
    return replace(
        winner,
        alternatives=alternatives,
        detected=min(winner.detected, rival.detected) if rival.cause == winner.cause else winner.detected,
        affected=max(winner.affected, rival.affected),
        severity=max(winner.severity, rival.severity, key=SEVERITIES.index),
    )


def _merge_ranks(candidates: Sequence[Finding]) -> list[Finding]:
    """The same conclusion on several ranks within RIVAL_STEPS is one finding; its rank is given only when one
    rank has it.
    """
    out: list[Finding] = []
    for f in sorted(candidates, key=_order):
        for i, other in enumerate(out):
            same = (other.cause, other.kind, other.segment) == (f.cause, f.kind, f.segment)
            if same and other.rank != f.rank and abs(other.onset - f.onset) <= RIVAL_STEPS:
                first = min(other, f, key=lambda x: (x.onset, -1 if x.rank is None else x.rank))
                out[i] = replace(
                    first,
                    rank=None,
                    detected=min(other.detected, f.detected),
                    affected=max(other.affected, f.affected),
                    confidence=max(other.confidence, f.confidence),
                    severity=max(other.severity, f.severity, key=SEVERITIES.index),
                )
                break
        else:
            out.append(f)
    return out


def _undetermined(f: Finding) -> Finding:
    """A winner below CONFIDENT is reported as undetermined, with itself and its best rival as the
    hypotheses."""
    if f.confidence >= CONFIDENT or f.cause == "undetermined" or f.severity == "info":
        return f
    own = Alternative(f.cause, f.confidence, "not proven yet: " + f.decisive_test)
    rivals = sorted(f.alternatives, key=lambda a: -a.confidence)[:1]
    return replace(
        f,
        cause="undetermined",
        kind=None,
        alternatives=(own, *rivals),
        summary=f"{f.summary} The cause is not certain: "
        + " or ".join(a.cause for a in (own, *rivals))
        + ".",
        remedy=Remedy(
            "Run the deciding test first. If it points to " + f.cause + ": " + f.remedy.text,
            f.remedy.settings,
        ),
    )
