"""The life of a finding: identity, and raised, confirmed, worsened, recovered, as the steps so far show it.

All of it follows from the symptoms, so it is the same under any chunking: what a finding was when it was
proven is what its rule says of the symptoms as they were then.
"""

from __future__ import annotations

from collections.abc import Sequence

from floatscope_diagnostics.curve_shapes.life import PREFIX
from floatscope_diagnostics.episodes import SETTLING_ROWS
from floatscope_diagnostics.rule import SEVERITIES, Finding, Rule, RunFacts, Symptoms, Window
from floatscope_diagnostics.verdict import finding_id

CONFIRMED = 0.9  # as sure as this: confirmed by itself
# Rows that a sign must last after its proof to confirm it without another kind of evidence.
CONFIRMED_ROWS = 3
SPREAD = 2  # times as many tensors as at first: worse


def incident_id(run_key: str, finding: Finding, symptoms: Symptoms, *, also: str = "") -> str:
    """Stable identity: hash of run, segment, onset of what was proven first, and that step's first signal.

    The signal is the one proven first among those that began there, which no later step can change; rules may
    word their evidence otherwise as they see more. also: tells two incidents of one onset apart.
    """
    onset = finding.key[1]
    begun = (
        (s.detected, s.signal)
        for s in symptoms.all
        if s.segment == finding.segment and s.onset == onset and s.detected is not None
    )
    _, signal = min(begun, default=(0, ""))
    if finding.key[2].startswith(PREFIX):
        signal = finding.key[2]
    return finding_id(run_key, finding.segment, onset, signal + also)


def incident_ids(run_key: str, findings: Sequence[Finding], symptoms: Symptoms) -> dict[int, str]:
    """The identities of all incidents, by ``id`` of the finding."""
    out: dict[int, str] = {}
    for finding in sorted(findings, key=lambda f: (f.segment, f.key, f.rule)):
        name = incident_id(run_key, finding, symptoms)
        if name in out.values():
            name = incident_id(run_key, finding, symptoms, also=f"\0{finding.rule}\0{len(out)}")
        out[id(finding)] = name
    return out


def state_of(
    finding: Finding, *, rules: Sequence[Rule], symptoms: Symptoms, window: Window, run: RunFacts
) -> str:
    """``raised``, ``confirmed``, ``worsened`` or ``recovered``.

    Worsened: since it was proven its severity went up, it reached SPREAD times as many tensors, or values
    became NaN or Inf.
    """
    if finding.resolved is not None:
        return "recovered"
    stride = symptoms.stride
    if finding.severity != "info" and window.last_step > finding.detected + SETTLING_ROWS * stride:
        before = _at_proof(finding, rules=rules, symptoms=symptoms, window=window, run=run)
        if before is not None and _is_worse(finding, before, symptoms):
            return "worsened"
    lasting = window.last_step - finding.detected >= CONFIRMED_ROWS * stride
    kinds = len({e.signal for e in finding.evidence})
    if finding.confidence >= CONFIRMED or kinds > 1 or lasting:
        return "confirmed"
    return "raised"


def _at_proof(
    finding: Finding, *, rules: Sequence[Rule], symptoms: Symptoms, window: Window, run: RunFacts
) -> Finding | None:
    """What the finding's rule said when it was proven; None where it needed more than was known then."""
    cause = finding.cause if finding.clues is None else finding.clues.cause
    then = symptoms.at(finding.detected)
    seen = Window(last_step=finding.detected, last_scalars=window.last_scalars)
    for rule in rules:
        if rule.code != finding.rule:
            continue
        for old in rule.check(then, seen, run):
            if (old.cause, old.segment, old.onset) == (cause, finding.segment, finding.onset):
                return old
    return None


def _is_worse(now: Finding, before: Finding, symptoms: Symptoms) -> bool:
    if SEVERITIES.index(now.severity) > SEVERITIES.index(before.severity):
        return True
    if now.affected >= SPREAD * max(before.affected, 1):
        return True
    if before.symptom == "nonfinite":
        return False
    settled = now.detected + SETTLING_ROWS * symptoms.stride
    return any(
        s.segment == now.segment and s.onset > settled and s.detected is not None
        for s in symptoms.all
        if "nonfinite" in s.signal and s.signal != "scale_nonfinite"
    )
