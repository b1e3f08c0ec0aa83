"""From what the rules say one by one to the incidents of a run: one finding each, its rivals as alternatives.

An earlier finding explains a later one when the later cause can follow from it (``consequences``) and the
earlier one was still going on, or had ended less than MEMORY_ROWS before. Findings that begin together are
rivals: the most confident wins, the others become its alternatives. Their confidences are calibrated, and an
answer that is not sure enough is ``undetermined`` (``certainty``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from floatscope_diagnostics.calibration import AS_STATED, CONFIDENT, Calibration
from floatscope_diagnostics.certainty import settle
from floatscope_diagnostics.consequences import follows_from
from floatscope_diagnostics.rule import SEVERITIES, Alternative, Finding

# Faults cross the network inside one step; what follows by +1 or +2 belongs to the same incident.
RIVAL_ROWS = 2
# Consequences such as an aged history come late; the longest measured cascade was 2 x 32 steps.
MEMORY_ROWS = 64
WEAKER = 0.2  # an explanation this much less sure than what it explains does not stand
# A scale that breaks its own formula is no consequence of values that are merely large, imprecise or masked.
EXACT_KINDS = (
    "frozen",
    "reduction_group",
    "recompute",
    "nonfinite_scale",
    "lost_at_resume",
    "degenerate_amax",
)
MERELY_LARGE = ("activation_outlier_growth", "quantization_drift", "masked_nonfinite")
# An outlier in the data: clipping that is over has not made it, however soon it follows.
BY_ITSELF = (("stale_scale_saturation", "amax_history_poisoning"),)
FOREVER = 1 << 62


@dataclass(frozen=True)
class Judgement:
    """findings: one an incident, in order of onset.  replaced: older reports, each with what explains it."""

    findings: tuple[Finding, ...]
    replaced: tuple[tuple[Finding, Finding], ...] = ()


@dataclass(slots=True)
class _Incident:
    """An incident while it is put together.

    best: its best explanation so far.  proven: the identity of the explanations alone, without the effects'.
    effects: later findings that follow from it.
    """

    best: Finding
    proven: tuple[int, int, str]
    effects: list[Finding] = field(default_factory=list)


def judge(
    candidates: Sequence[Finding], *, stride: int = 1, calibration: Calibration = AS_STATED
) -> Judgement:
    """Sorts what the rules said into incidents. stride: steps from one logged row to the next.

    calibration: makes the confidences of the answers from those the rules state.
    """
    kept: list[_Incident] = []
    near = RIVAL_ROWS * stride
    for finding in sorted(_merge_ranks(candidates, stride), key=_order):
        cause = next((k for k in kept if _explains(k.best, finding, stride)), None)
        if cause is not None:
            cause.best = _with_effect(cause.best, finding, near)
            cause.effects.append(finding)
            continue
        rival = next((k for k in kept if _same_incident(k.best, finding, stride)), None)
        if rival is None:
            kept.append(_Incident(finding, finding.key))
            continue
        wins = finding.confidence > rival.best.confidence and finding.severity != "info"
        rival.best = _with_rival(finding, rival.best) if wins else _with_rival(rival.best, finding)
        rival.proven = min(rival.proven, finding.key)
    first = min(
        ((k.best.segment, _begins(k.best)) for k in kept if k.best.severity != "info"), default=(0, 0)
    )
    for k in kept:
        k.best = settle(k.best, calibration, earlier=(k.best.segment, _begins(k.best)) > first)
    kept.sort(key=lambda k: (k.best.segment, k.best.onset, -k.best.confidence, k.best.cause))
    identities = {k.best.key for k in kept}
    replaced = [(f, k.best) for k in kept for f in _reported(k, stride) if f.key not in identities]
    return Judgement(tuple(k.best for k in kept), tuple(replaced))


def _reported(incident: _Incident, stride: int) -> list[Finding]:
    """The effects that were incidents of their own until the cause was proven."""
    alarms = [f for f in incident.effects if f.severity != "info" and f.confidence >= CONFIDENT]
    early = [f for f in alarms if f.key < incident.proven]
    return [f for f in early if not any(g.key < f.key and _together(f, g, stride) for g in early)]


def _together(a: Finding, b: Finding, stride: int) -> bool:
    return _explains(a, b, stride) or _explains(b, a, stride) or _same_incident(a, b, stride)


def _with_effect(cause: Finding, effect: Finding, near: int) -> Finding:
    """A cause lasts as long as its consequences, and is as grave as NaN when it led there."""
    grave = effect.symptom == "nonfinite" and effect.severity != "info"
    return replace(
        cause,
        key=_first_key(cause, effect, near),
        last=None if effect.last is None else cause.last,
        resolved=None if effect.resolved is None and effect.last is None else cause.resolved,
        severity=max(cause.severity, effect.severity, key=SEVERITIES.index) if grave else cause.severity,
    )


def _first_key(cause: Finding, effect: Finding, near: int) -> tuple[int, int, str]:
    """An incident is known by what was proven first, so that a better explanation keeps its identity."""
    together = abs(_begins(cause) - _begins(effect)) <= near
    reported = effect.severity != "info" and (together or effect.confidence >= CONFIDENT)
    return min(cause.key, effect.key) if reported else cause.key


def _begins(f: Finding) -> int:
    """Onset, or the last step of its window: a vague onset must not swallow an exact one."""
    return f.onset if f.onset_last is None else f.onset_last


def _order(f: Finding) -> tuple[int, int, float, str, str, int]:
    return (f.segment, _begins(f), -f.confidence, f.cause, f.kind or "", -1 if f.rank is None else f.rank)


def _end(f: Finding) -> int:
    return FOREVER if f.last is None else f.last


def _explains(cause: Finding, effect: Finding, stride: int) -> bool:
    if not follows_from(cause.cause, effect.cause) or cause.segment > effect.segment:
        return False
    if effect.kind in EXACT_KINDS and cause.cause in MERELY_LARGE:
        return False
    if _apart(cause, effect):
        return False
    if cause.segment < effect.segment:
        return cause.last is None and cause.resolved is None
    if cause.confidence < effect.confidence - WEAKER or cause.severity == "info":
        return False
    if _begins(cause) > _begins(effect):
        return False
    memory = RIVAL_ROWS if (cause.cause, effect.cause) in BY_ITSELF else MEMORY_ROWS
    return effect.onset <= _end(cause) + memory * stride


def _apart(a: Finding, b: Finding) -> bool:
    """Whether each was seen on one rank, and not on the same. A rank below 0 is all ranks together."""
    one_each = a.rank is not None and b.rank is not None and min(a.rank, b.rank) >= 0
    return one_each and a.rank != b.rank


def _same_incident(a: Finding, b: Finding, stride: int) -> bool:
    if a.segment != b.segment:
        return False
    near = RIVAL_ROWS * stride
    if a.cause == b.cause:
        return a.onset <= _end(b) + near and b.onset <= _end(a) + near
    return abs(_begins(a) - _begins(b)) <= near


def _with_rival(winner: Finding, rival: Finding) -> Finding:
    if rival.severity == "info":
        return winner
    winner = replace(winner, key=min(winner.key, rival.key))
    if rival.cause == winner.cause:
        first = min(winner, rival, key=lambda f: (f.onset_last is not None, f.onset))  # an exact onset wins
        return replace(
            winner,
            onset=first.onset,
            onset_last=first.onset_last,
            summary=_told(first, winner),
            evidence=tuple(dict.fromkeys((*first.evidence, *winner.evidence))),
            tensors=first.tensors or winner.tensors,
            detected=max(min(winner.detected, rival.detected), first.onset),
            affected=max(winner.affected, rival.affected),
            severity=max(winner.severity, rival.severity, key=SEVERITIES.index),
            resolved=None if rival.resolved is None else winner.resolved,
            last=None if rival.last is None else winner.last,
        )
    alternatives = winner.alternatives
    if all(a.cause != rival.cause for a in alternatives):
        against = f"weaker evidence: {rival.summary}"
        told = Alternative(rival.cause, rival.confidence, against, test=rival.decisive_test, rule=rival.rule)
        alternatives = (*alternatives, told)
    return replace(winner, alternatives=alternatives)


def _told(first: Finding, winner: Finding) -> str:
    """The words for two findings of one cause that are one incident, whose onset is ``first``'s: they name
    the step of that onset and the kind of ``winner``."""
    if first is winner or first.kind == winner.kind:
        return first.summary
    return f"{winner.summary} First sign: {first.summary}"


def _merge_ranks(candidates: Sequence[Finding], stride: int) -> list[Finding]:
    """The same conclusion on several ranks within RIVAL_ROWS is one finding, of no rank."""
    out: list[Finding] = []
    for f in sorted(candidates, key=_order):
        for i, other in enumerate(out):
            same = (other.cause, other.kind, other.segment) == (f.cause, f.kind, f.segment)
            two = (
                other.rank != f.rank and min(other.rank or 0, f.rank or 0) >= 0
            )  # below 0: all ranks together
            if same and two and abs(other.onset - f.onset) <= RIVAL_ROWS * stride:
                first = min(other, f, key=lambda x: (x.onset, -1 if x.rank is None else x.rank))
                out[i] = replace(
                    first,
                    key=min(other.key, f.key),
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
