"""The decision as data: its gates, its verdict, and what is refused. Words and numbers, no computation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from floatscope_diagnostics.compare.limits import Limits

GateName = Literal["loss", "drift", "held_out", "evals", "stability", "fp8_health", "speed", "cost"]
State = Literal["pass", "fail", "undecided", "not_checked"]
Verdict = Literal["go", "no_go", "not_yet"]


@dataclass(frozen=True)
class Gate:
    """One question of the decision.

    sentence: for a person.  value, low, high: the measurement and its interval, None where there is none.
    limit: what it is held against, in ``unit``.  more_steps: until it can be told, None if unknown.
    next_step: the cheapest measurement that would decide it, "" if it is decided.  blocks: while it is
    undecided the decision is not yet.
    """

    name: GateName
    state: State
    sentence: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    limit: float | None = None
    unit: str = ""
    more_steps: int | None = None
    next_step: str = ""
    blocks: bool = True

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Refusal:
    """Something that keeps the pair from being decided. blocks: the whole decision, not only a part of it."""

    code: str
    sentence: str
    blocks: bool = True

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class EvalRow:
    """One task side by side, in percent. difference, low, high: run minus baseline, in points; None where
    nothing pairs them. n: questions, None if unknown.
    """

    name: str
    run: float
    baseline: float
    difference: float
    low: float | None
    high: float | None
    n: int | None
    state: State
    how: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Quality:
    """What the loss difference costs in tokens, and what is left of the speed-up.

    extra_tokens_pct: tokens the run needs beyond the baseline's to reach its loss.  beta: nats per e-fold of
    tokens, from the baseline's curve, with its standard error.
    """

    extra_tokens_pct: float
    extra_tokens_low_pct: float
    extra_tokens_high_pct: float
    beta: float
    beta_error: float
    net_speedup: float | None = None
    net_low: float | None = None
    net_high: float | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Go:
    """The decision: ``sentence`` says it for a person, ``next_step`` what to measure next. more_steps: until
    all that is open is decided, None where that is not known.
    """

    verdict: Verdict
    sentence: str
    gates: tuple[Gate, ...]
    limits: Limits
    shown_limits: Mapping[str, Any] = field(default_factory=dict)
    more_steps: int | None = None
    next_step: str = ""
    quality: Quality | None = None
    evals: tuple[EvalRow, ...] = ()
    refused: tuple[Refusal, ...] = ()

    @property
    def decidable(self) -> bool:
        """Whether the two runs can be held against each other at all."""
        return not any(r.blocks for r in self.refused)

    def gate(self, name: GateName) -> Gate:
        """The gate of that name. Raises KeyError."""
        for gate in self.gates:
            if gate.name == name:
                return gate
        raise KeyError(name)

    def to_json(self) -> dict[str, Any]:
        """The value of "go" in the document of ``floatscope compare --json``."""
        return {
            "verdict": self.verdict,
            "decidable": self.decidable,
            "sentence": self.sentence,
            "gates": [gate.to_json() for gate in self.gates],
            "more_steps": self.more_steps,
            "next": self.next_step,
            "limits": dict(self.shown_limits),
            "quality": None if self.quality is None else self.quality.to_json(),
            "evals": [row.to_json() for row in self.evals],
            "refused": [r.to_json() for r in self.refused],
        }
