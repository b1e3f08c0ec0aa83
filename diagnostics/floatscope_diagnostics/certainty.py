"""How sure the answer to an incident is, what else it may be, and whether that is enough to name it.

The stated confidence of the best explanation becomes a calibrated one (``calibration``); what is left is
shared among the other explanations and causes that nobody named, so that all together they make 1.
"""

from __future__ import annotations

from dataclasses import replace

from floatscope_diagnostics.calibration import Calibration, clues_of
from floatscope_diagnostics.differential import candidates, deciding_test
from floatscope_diagnostics.rule import Alternative, Finding, Remedy

MOST = 3  # alternatives named in an answer
LOOKALIKE_WEIGHT = 0.15  # of the likeliest look-alike, against stated confidences of rules that saw a sign
UNDETERMINED_AT_MOST = 0.59  # confidence of the answer that it is neither of the hypotheses


def settle(finding: Finding, calibration: Calibration, *, earlier: bool = False) -> Finding:
    """The finding as it is answered: calibrated, with its rivals, ``undetermined`` below the threshold.

    finding: best explanation of an incident; its alternatives have the confidences their rules stated.
    earlier: whether another incident of the run began before.
    """
    if finding.severity == "info":
        return finding
    clues = clues_of(finding, earlier=earlier)
    named = finding.cause != "undetermined"
    sure = calibration.probability(clues) if named else 0.0
    others = _others(finding, left=1.0 - sure, calibration=calibration, group=clues.group)
    finding = replace(finding, basis=calibration.basis, clues=clues, alternatives=others)
    if not named:
        return _undetermined(finding, others[:2])
    if sure >= calibration.threshold:
        return replace(finding, confidence=sure)
    own = Alternative(
        finding.cause,
        sure,
        "not proven yet: " + finding.decisive_test,
        test=finding.decisive_test,
        rule=finding.rule,
    )
    return _undetermined(finding, sorted((own, *others[:1]), key=lambda a: -a.confidence))


def _others(
    finding: Finding, *, left: float, calibration: Calibration, group: str
) -> tuple[Alternative, ...]:
    """Rivals and causes that look alike, the likeliest first; they share ``left`` with what nobody named."""
    not_these = (finding.cause, "undetermined")
    weights = {a.cause: (a.confidence, a) for a in finding.alternatives if a.cause not in not_these}
    seen = dict(calibration.elsewhere.get(group, {}))
    for place, cause in enumerate(candidates(finding.cause, finding.symptom), start=1):
        seen.setdefault(cause, LOOKALIKE_WEIGHT / place)
    for cause, weight in seen.items():
        if cause in not_these:
            continue
        before, told = weights.get(cause, (0.0, None))
        why = told or Alternative(cause, 0.0, "looks alike; no sign of its own was seen")
        weights[cause] = (before + weight, why)
    total = sum(w for w, _ in weights.values()) + calibration.other
    ranked = sorted(weights.values(), key=lambda x: (-x[0], x[1].cause))[:MOST]
    return tuple(replace(a, confidence=left * w / total) for w, a in ranked)


def _undetermined(finding: Finding, two: list[Alternative] | tuple[Alternative, ...]) -> Finding:
    """The answer that leaves it open: two hypotheses, the test between them, and first of all that test.

    Its confidence is that of neither hypothesis being right, at most UNDETERMINED_AT_MOST.
    """
    own = {a.cause: a.test for a in two if a.test}
    test = finding.decisive_test
    if len(two) == 2:
        test = deciding_test(two[0].cause, two[1].cause, own=own)
    was = finding.cause
    text = finding.remedy.text
    return replace(
        finding,
        cause="undetermined",
        kind=None,
        confidence=min(1.0 - sum(a.confidence for a in two), UNDETERMINED_AT_MOST),
        alternatives=tuple(two),
        decisive_test=test or finding.decisive_test,
        summary=finding.summary
        if was == "undetermined"
        else f"{finding.summary} The cause is not certain: {' or '.join(a.cause for a in two)}.",
        remedy=finding.remedy
        if was == "undetermined"
        else Remedy(f"Run the deciding test first. If it points to {was}: {text}", finding.remedy.settings),
    )
