"""What a rule author imports: Rule, Finding, Evidence, Remedy, Need, RunFacts, Window and the symptoms;
``Threshold`` is in ``thresholds``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from floatscope.protocol.names import split_tensor
from floatscope_diagnostics.clues import Clues
from floatscope_diagnostics.episodes import Symptom
from floatscope_diagnostics.machine import Machine
from floatscope_diagnostics.thresholds import Threshold

Severity = Literal["info", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")

FAMILY_OF: Mapping[str, str] = {
    "invalid_input": "input_nan",
    "stale_scale_saturation": "scale_calibration_blowup",
    "amax_history_poisoning": "scale_calibration_blowup",
    "scale_state_fault": "scale_calibration_blowup",
    "quantization_drift": "slow_truncation_drift",
    "gradient_underflow": "slow_truncation_drift",
    "update_stagnation": "slow_truncation_drift",
    "accumulation_precision": "slow_truncation_drift",
    "activation_outlier_growth": "activation",
    "activation_overflow": "activation",
    "logit_growth": "activation",
    "bad_batch": "data",
    "data_shift": "data",
    "lr_divergence": "optimization",
    "optimizer_state_fault": "optimization",
    "master_weight_desync": "optimization",
    "loss_scale_collapse": "optimization",
    "dead_logits": "optimization",
    "overfitting": "optimization",
    "plateau": "optimization",
    "op_kernel_fault": "kernel",
    "comm_overlap_race": "kernel",
    "masked_nonfinite": "kernel",
    "rank_divergence": "hardware",
    "stall": "hardware",
    "undetermined": "undetermined",
}
"""Family of every cause (fixed vocabulary of the verdict)."""


@dataclass(frozen=True)
class Evidence:
    """One number a finding rests on, with what would have been normal."""

    signal: str
    step: int | None
    value: float | str | None
    expected: str
    tensor: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "signal": self.signal,
            "tensor": self.tensor,
            "step": self.step,
            "value": self.value,
            "expected": self.expected,
        }


@dataclass(frozen=True)
class Alternative:
    """A cause that was weighed and found less likely, and what speaks against it.

    confidence: as stated by its rule; in an answer its share of what the winner leaves.  test: what would
    prove it.  rule: that named it.
    """

    cause: str
    confidence: float
    against: str
    test: str = ""
    rule: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"cause": self.cause, "confidence": round(self.confidence, 2), "against": self.against}


@dataclass(frozen=True)
class Remedy:
    """What to do, in words and as settings by framework."""

    text: str
    settings: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"text": self.text, "settings": dict(self.settings)}


@dataclass(frozen=True)
class Need:
    """A signal a rule looks at: a scalar, or ``<layers>/<role> <stat>``. Missing ones: ``not_checked``."""

    signal: str
    roles: tuple[str, ...] = ()


@dataclass(frozen=True)
class Wish:
    """A signal to log from now on.

    tensors: a pattern, None for a scalar.  every: steps from one to the next.  steps: for how long.
    """

    signal: str
    tensors: str | None
    every: int
    steps: int
    why: str

    @property
    def text(self) -> str:
        of = f" of {self.tensors}" if self.tensors else ""
        return f"log {self.signal}{of} at every step for {self.steps} steps"

    def to_json(self) -> dict[str, Any]:
        return {
            "signal": self.signal,
            "tensors": self.tensors,
            "every": self.every,
            "steps": self.steps,
            "why": self.why,
            "text": self.text,
        }


@dataclass(frozen=True)
class Finding:
    """What one rule concluded from the symptoms.

    onset_first, onset_last: first and last step at which it may have begun, where the onset is not exact.
    last: last step with the sign, None while it goes on.  key: detected step, onset and first signal of what
    was proven first in the incident; its identity.
    """

    cause: str
    symptom: str
    severity: Severity
    confidence: float
    onset: int
    detected: int
    summary: str
    evidence: tuple[Evidence, ...]
    remedy: Remedy
    decisive_test: str
    kind: str | None = None
    onset_last: int | None = None
    onset_first: int | None = None
    resolved: int | None = None
    rank: int | None = None
    segment: int = 0
    tensors: tuple[str, ...] = ()
    affected: int = 0
    order: str | None = None
    alternatives: tuple[Alternative, ...] = ()
    last: int | None = None
    rule: str = ""
    key: tuple[int, int, str] = (0, 0, "")
    basis: str = "stated by the rule"
    clues: Clues | None = None
    log_next: tuple[Wish, ...] = ()

    @property
    def tensor(self) -> str | None:
        return self.tensors[0] if self.tensors else None

    @property
    def layer(self) -> str | None:
        return split_tensor(self.tensors[0])[0] if self.tensors else None


@dataclass(frozen=True)
class RunFacts:
    """What the rules may know about the run besides its symptoms.

    stats: (role, stat) pairs seen.  stats_every: steps from one with tensor statistics to the next.  scalars:
    names seen.  thresholds: those of the rule that is asked, where they were moved.
    machine: as its preflight saw it.
    """

    recipe: Mapping[str, Any]
    formats: Mapping[str, str]
    tensors: int
    stats: frozenset[tuple[str, str]]
    scalars: frozenset[str]
    ranks: int
    world_size: int
    first_step: int | None
    last_step: int | None
    vocab_size: int | None
    status: str | None
    reason: str | None
    has_baseline: bool
    forward_order: tuple[str, ...]
    call_order: Mapping[str, int]
    stats_every: int = 1
    thresholds: Mapping[str, float] = field(default_factory=dict)
    machine: Machine = field(default_factory=Machine)

    @property
    def curves_only(self) -> bool:
        """Whether no tensor statistics are logged: then the curves of the scalars are judged as a whole."""
        return self.tensors == 0

    @property
    def recipe_name(self) -> str:
        return str(self.recipe.get("name") or "")

    def saw(self, need: Need) -> bool:
        if not need.roles:
            return need.signal in self.scalars
        return any((role, need.signal) in self.stats for role in need.roles)


@dataclass(frozen=True)
class Symptoms:
    """All symptoms of a run, in order of onset, with the questions rules ask.

    stride: steps from one logged row to the next (1 if every step is logged); all distances below are in
    rows.
    """

    all: tuple[Symptom, ...]
    stride: int = 1

    def of(self, *signals: str, proven: bool = True) -> list[Symptom]:
        return [s for s in self.all if s.signal in signals and (not proven or s.detected is not None)]

    def near(
        self, signal: str, step: int, *, before: int = 0, after: int = 0, proven: bool = True
    ) -> list[Symptom]:
        """Symptoms of a signal whose onset lies within [step - before, step + after] (rows)."""
        before, after = before * self.stride, after * self.stride
        return [s for s in self.of(signal, proven=proven) if step - before <= s.onset <= step + after]

    def active(self, signal: str, step: int, *, slack: int = 0) -> list[Symptom]:
        """Symptoms of a signal that were going on at a step, give or take ``slack`` rows."""
        slack = slack * self.stride
        return [s for s in self.of(signal) if s.onset - slack <= step <= s.last + slack]

    def at(self, step: int) -> Symptoms:
        """What was known after a step."""
        return Symptoms(tuple(s.at(step) for s in self.all if s.onset <= step), self.stride)


@dataclass(frozen=True)
class Window:
    """How far the run has gone: the last judged step by rank and the newest scalars."""

    last_step: int
    last_scalars: Mapping[str, float]


Check = Callable[[Symptoms, Window, RunFacts], Iterator[Finding]]


@dataclass(frozen=True)
class Rule:
    """One rule. code: permanent, ``FS`` and three digits.  needs: signals it looks at.  thresholds: numbers
    of it that may be moved.
    """

    code: str
    name: str
    causes: tuple[str, ...]
    needs: tuple[Need, ...]
    check: Check
    needs_baseline: bool = False
    needs_ranks: bool = False
    thresholds: tuple[Threshold, ...] = ()


def affected(symptoms: Sequence[Symptom]) -> int:
    return len({t for s in symptoms for t in s.tensors})


def about(
    lead: Symptom,
    *,
    cause: str,
    symptom: str,
    severity: Severity,
    confidence: float,
    summary: str,
    evidence: Sequence[Evidence],
    remedy: Remedy,
    decisive_test: str,
    kind: str | None = None,
    order: str | None = None,
    alternatives: Sequence[Alternative] = (),
    tensors: tuple[str, ...] | None = None,
    onset: int | None = None,
    detected: int | None = None,
    onset_last: int | None = None,
    onset_first: int | None = None,
    lasting: bool | None = None,
) -> Finding:
    """A finding that begins, is proven, lasts and is located as its leading symptom is.

    tensors: first cause first, default those of the symptom's first step.  lasting: True if the harm goes on
    although the symptom has ended (lost weights); default as the symptom.
    """
    going_on = lead.open if lasting is None else lasting
    first = lead.onset if onset is None else onset
    proof = detected if detected is not None else (lead.onset if lead.detected is None else lead.detected)
    return Finding(
        cause=cause,
        kind=kind,
        symptom=symptom,
        severity=severity,
        confidence=confidence,
        onset=first,
        onset_last=onset_last,
        onset_first=onset_first,
        detected=max(proof, first),
        summary=summary,
        evidence=tuple(evidence),
        remedy=remedy,
        decisive_test=decisive_test,
        resolved=None if going_on else lead.last + 1,
        last=None if going_on else lead.last,
        rank=lead.rank,
        segment=lead.segment,
        tensors=lead.first if tensors is None else tensors,
        affected=len(lead.tensors),
        order=order,
        alternatives=tuple(alternatives),
    )


def proof_after(s: Symptom, rows: int, symptoms: Symptoms) -> int:
    """The step whose data made a symptom so many rows long: a rule that asks for them knows it no sooner."""
    at = s.onset + (rows - 1) * symptoms.stride
    return max(s.onset if s.detected is None else s.detected, min(at, s.last))


def shared(a: Symptom, b: Symptom) -> tuple[str, ...]:
    """Tensors that both symptoms affect, in the first one's order."""
    other = set(b.tensors)
    return tuple(t for t in a.tensors if t in other)
