"""What to log from now on so that a finding can be decided: what its rule, and the rules of its rivals, need
and the log lacks or has too seldom."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from floatscope.protocol.names import split_tensor
from floatscope_diagnostics.columns import natural_key
from floatscope_diagnostics.not_checked import Gap, LogGaps
from floatscope_diagnostics.rule import Finding, Rule, Wish

STEPS = 50  # long enough for a level and its change, see the rules' own warm-up
SURE = 0.9  # nothing more is needed to decide an answer as sure as this
MOST = 4  # wishes of one finding
_NUMBER = re.compile(r"\d+")


def wishes(finding: Finding, rules: Sequence[Rule], gaps: LogGaps) -> tuple[Wish, ...]:
    """Signals that would decide the finding, those of its own rule first; none for a note or a sure one."""
    if finding.severity == "info" or finding.confidence >= SURE:
        return ()
    causes = [a.cause for a in finding.alternatives[:2]]
    own = [rule for rule in rules if rule.code == finding.rule]
    others = [rule for cause in causes for rule in rules if cause in rule.causes and rule not in own]
    out: dict[tuple[str, str | None], Wish] = {}
    for rule in (*own, *others):
        for need in rule.needs:
            for gap in gaps.of(need):
                wish = _wish(gap, rule, finding)
                out.setdefault((wish.signal, wish.tensors), wish)
    return tuple(out.values())[:MOST]


def _wish(gap: Gap, rule: Rule, finding: Finding) -> Wish:
    causes = " or ".join(cause.replace("_", " ") for cause in rule.causes if cause != "undetermined")
    return Wish(
        signal=gap.need.signal,
        tensors=f"{span(finding.tensors)}/{'|'.join(gap.roles)}" if gap.roles else None,
        every=1,
        steps=STEPS,
        why=f"{gap.why}; {rule.code} needs it {f'for {causes}' if causes else 'to see where it begins'}",
    )


def span(tensors: Sequence[str]) -> str:
    """The layers of tensors in one pattern: ``layers.0-3``, one name, or ``*``."""
    layers = sorted({split_tensor(t)[0] for t in tensors}, key=natural_key)
    if len(layers) == 1:
        return layers[0]
    for text in _common(layers):
        return text
    return "*"


def _common(layers: Sequence[str]) -> Iterator[str]:
    """Names that differ in one number only, as a range of it; else in what comes after their first number."""
    blocks = [_NUMBER.search(name) for name in layers]
    found = [b for b in blocks if b is not None]
    if not layers or len(found) != len(layers):
        return
    heads = {name[: b.start()] for name, b in zip(layers, found, strict=True)}
    tails = {name[b.end() :] for name, b in zip(layers, found, strict=True)}
    if len(heads) != 1:
        return
    numbers = sorted({int(b.group()) for b in found})
    low, high = numbers[0], numbers[-1]
    tail = tails.pop() if len(tails) == 1 else ".*"
    yield f"{heads.pop()}{low}-{high}{tail}" if high > low else f"{heads.pop()}{low}{tail}"
