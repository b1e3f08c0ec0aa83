"""The advice: which layers of a run should leave FP8, as frozen values and as the document
``floatscope.advice/1``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from floatscope_diagnostics.verdict import plain_object

SCHEMA = "floatscope.advice/1"

What = Literal["underflow_pct", "overflow_pct", "sqnr_loss_db", "nonfinite"]
Decision = Literal["keep_fp8", "move_layers", "not_layers", "cannot_say"]
Framework = Literal["te", "torchao", "megatron", "floatscope"]
FRAMEWORKS: tuple[Framework, ...] = ("te", "torchao", "megatron", "floatscope")


@dataclass(frozen=True)
class Limits:
    """The level each problem must be brought below. Starting values and their calibration: limits.json.

    grad_underflow_pct, input_underflow_pct, weight_underflow_pct: share of the non-zero elements that become
    zero, in %.  overflow_pct: share of elements beyond the format's maximum, in %.  sqnr_loss_db: how far the
    signal-to-noise ratio may lie below what the format reaches on the same values.
    """

    grad_underflow_pct: float
    input_underflow_pct: float
    weight_underflow_pct: float
    overflow_pct: float
    sqnr_loss_db: float

    def underflow_pct(self, role: str) -> float:
        """The limit for a tensor of this role."""
        if role == "weight":
            return self.weight_underflow_pct
        return self.input_underflow_pct if role == "input" else self.grad_underflow_pct

    def to_json(self) -> dict[str, Any]:
        return {
            "grad_underflow_pct": self.grad_underflow_pct,
            "input_underflow_pct": self.input_underflow_pct,
            "weight_underflow_pct": self.weight_underflow_pct,
            "overflow_pct": self.overflow_pct,
            "sqnr_loss_db": self.sqnr_loss_db,
        }


@dataclass(frozen=True)
class Window:
    """Where a mean was taken. rows: statistics that went into it."""

    first_step: int
    last_step: int
    rows: int

    def to_json(self) -> dict[str, Any]:
        return {"first_step": self.first_step, "last_step": self.last_step, "rows": self.rows}


@dataclass(frozen=True)
class Problem:
    """One statistic of one tensor beyond its limit.

    value, limit: in ``unit`` ("%", "dB", "steps").  since_step: first step of the first stretch beyond the
    limit; last_step: last step beyond it.  window: whose mean the value is, the worst of the run.
    """

    layer: str
    role: str
    tensor: str
    what: What
    value: float
    limit: float
    unit: str
    since_step: int
    last_step: int
    window: Window | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "layer": self.layer,
            "role": self.role,
            "tensor": self.tensor,
            "what": self.what,
            "value": self.value,
            "limit": self.limit,
            "unit": self.unit,
            "since_step": self.since_step,
            "last_step": self.last_step,
            "window": None if self.window is None else self.window.to_json(),
        }


@dataclass(frozen=True)
class LayerAdvice:
    """One layer that should change.

    from_, to: recipes by short name ("delayed", "current", "block", "mxfp8", "rowwise", "bf16").  why:
    sentences.  harm: damage of the layer's casts, see ``harm.py``; no unit.  flops_share_pct: of all GEMMs of
    linear layers that the run watched.  predicted: worst figures of the layer's tensors with ``to``
    (``underflow_pct``, ``sqnr_db``), empty where they cannot be said.  targets: what the layer would get by
    framework, since each can give a single layer something else; ``to`` where one is not in it.  not_judged:
    finer recipes that could not be predicted and might do instead of ``to``.
    """

    layer: str
    from_: str
    to: str
    why: tuple[str, ...]
    harm: float
    flops_share_pct: float | None
    predicted: dict[str, float] = field(default_factory=dict)
    targets: Mapping[Framework, str] = field(default_factory=dict)
    not_judged: tuple[str, ...] = ()

    def to_in(self, framework: Framework) -> str:
        """The target in the settings of a framework."""
        return self.targets.get(framework, self.to)

    def to_json(self) -> dict[str, Any]:
        return {
            "layer": self.layer,
            "from": self.from_,
            "to": self.to,
            "why": list(self.why),
            "harm": self.harm,
            "flops_share_pct": self.flops_share_pct,
            "predicted": dict(self.predicted),
            "not_judged": list(self.not_judged),
        }


@dataclass(frozen=True)
class Gain:
    """What the change should bring and cost. None: cannot be said; ``not_decided`` says why.

    gap_nats, gap_low_nats, gap_high_nats: mean of loss - baseline's over the last part of the run, with its
    confidence interval; gap_steps: first and last step of that part; gap_chance_nats: what runs
    without a fault differ by, where twins of the baseline tell.  gap_closed_pct, _low_, _high_: share of the
    gap that should close; the interval is the error of this prediction in the benchmark.  harm_removed_pct:
    of the harm of all layers.  flops_leaving_pct: share of the FP8 GEMM FLOPs that would run in BF16.
    speed_cost_pct: longer time, in % of the time of the linear layers' GEMMs; speed_from: what that rests on;
    gpu_named: False where naming a GPU would make the price that of the right one.
    """

    harm_removed_pct: float | None = None
    gap_nats: float | None = None
    gap_low_nats: float | None = None
    gap_high_nats: float | None = None
    gap_steps: tuple[int, int] | None = None
    gap_chance_nats: float | None = None
    gap_closed_pct: float | None = None
    gap_closed_low_pct: float | None = None
    gap_closed_high_pct: float | None = None
    flops_leaving_pct: float | None = None
    speed_cost_pct: float | None = None
    speed_from: str = ""
    gpu_named: bool = True

    def to_json(self) -> dict[str, Any]:
        return {
            "harm_removed_pct": self.harm_removed_pct,
            "gap_nats": self.gap_nats,
            "gap_low_nats": self.gap_low_nats,
            "gap_high_nats": self.gap_high_nats,
            "gap_steps": None if self.gap_steps is None else list(self.gap_steps),
            "gap_chance_nats": self.gap_chance_nats,
            "gap_closed_pct": self.gap_closed_pct,
            "gap_closed_low_pct": self.gap_closed_low_pct,
            "gap_closed_high_pct": self.gap_closed_high_pct,
            "flops_leaving_pct": self.flops_leaving_pct,
            "speed_cost_pct": self.speed_cost_pct,
            "speed_from": self.speed_from,
        }


@dataclass(frozen=True)
class Settings:
    """The advice as text to paste, one for each framework. Empty where nothing is to be changed."""

    transformer_engine: str = ""
    torchao: str = ""
    megatron: str = ""
    floatscope_train: str = ""

    def to_json(self) -> dict[str, str]:
        return {
            "transformer_engine": self.transformer_engine,
            "torchao": self.torchao,
            "megatron": self.megatron,
            "floatscope_train": self.floatscope_train,
        }


@dataclass(frozen=True)
class NotDecided:
    """Something that the advice could not say, or that no change of layers would mend."""

    code: str
    sentence: str

    def to_json(self) -> dict[str, str]:
        return {"code": self.code, "sentence": self.sentence}


@dataclass(frozen=True)
class Advice:
    """The whole advice.

    run: name or id.  steps: first and last that were looked at.  decision: what to do, in a word; sentence:
    in words.  layers: most harm per FLOP first.  kept: layers that stay as they are.  always: what is in high
    precision whatever the statistics say, one sentence.  experiment: how to check the advice.
    """

    run: str
    steps: tuple[int, int] | None
    framework: Framework
    decision: Decision
    sentence: str
    limits: Limits
    problems: tuple[Problem, ...] = ()
    layers: tuple[LayerAdvice, ...] = ()
    kept: int = 0
    predicted: Gain = field(default_factory=Gain)
    settings: Settings = field(default_factory=Settings)
    always: str = ""
    experiment: str = ""
    not_decided: tuple[NotDecided, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The document; numbers that are not finite are strings, as everywhere in the protocol."""
        return plain_object(
            {
                "schema": SCHEMA,
                "run": self.run,
                "steps": None if self.steps is None else list(self.steps),
                "framework": self.framework,
                "decision": self.decision,
                "sentence": self.sentence,
                "limits": self.limits.to_json(),
                "problems": [p.to_json() for p in self.problems],
                "layers": [one.to_json() for one in self.layers],
                "kept": self.kept,
                "predicted": self.predicted.to_json(),
                "settings": self.settings.to_json(),
                "always": self.always,
                "experiment": self.experiment,
                "not_decided": [n.to_json() for n in self.not_decided],
            }
        )
