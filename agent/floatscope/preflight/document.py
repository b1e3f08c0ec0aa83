"""Preflight's whole answer, and the JSON document of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from floatscope.model_shapes.shape import ModelShape
from floatscope.preflight.check import STATUSES, Check, Status
from floatscope.preflight.facts import Facts, Wanted
from floatscope.protocol.strict_json import plain

SCHEMA = "floatscope.preflight/1"
DECIDING = ("gpu.found", "recipe.", "software.torch_import", "preflight.facts", "preflight.machine")
"""What names of checks begin with that decide: an ``unknown`` there leaves the whole answer open."""
PLAIN = ("fp16_amp", "bf16", "fp32", "custom")
"""Recipes that are not FP8, or not known: they do not answer whether FP8 can train here."""

Decision = Status


@dataclass(frozen=True)
class Preflight:
    """Everything that was looked at.

    made_at: ISO 8601, UTC.  recipes: recipe -> (status, why) where no recipe was chosen.  casts: what casts
    to FP8 did with values that do not fit.  gemm: a row for each format of the smoke GEMM.  layers: a row
    for each kind of linear layer.  seconds: part -> how long it took.  light: made inside a training process,
    which looks at less.
    """

    made_at: str
    facts: Facts
    wanted: Wanted
    checks: tuple[Check, ...]
    recipes: Mapping[str, tuple[Status, str]] = field(default_factory=dict)
    casts: Mapping[str, Any] = field(default_factory=dict)
    gemm: tuple[Mapping[str, Any], ...] = ()
    layers: tuple[Mapping[str, Any], ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    light: bool = False

    @property
    def counts(self) -> dict[Status, int]:
        """How many checks have each status, in the order of ``STATUSES``."""
        return {status: sum(one.status == status for one in self.checks) for status in STATUSES}

    @property
    def decision(self) -> Decision:
        """``fail`` if any check fails, or every FP8 recipe where none was chosen; ``unknown`` if no GPU was
        seen, a check that decides could not look or none looked; else ``warn`` or ``pass``. What is unknown
        elsewhere is shown, and makes it ``warn``.
        """
        found = {one.status for one in self.checks}
        recipes = {status for name, (status, _) in self.recipes.items() if name not in PLAIN}
        if "fail" in found or recipes == {"fail"}:
            return "fail"
        if not found & {"pass", "warn"} or not self.facts.gpus:
            return "unknown"
        if self.open or (recipes and not recipes & {"pass", "warn"}):
            return "unknown"
        return "warn" if found & {"warn", "unknown"} else "pass"

    @property
    def open(self) -> tuple[Check, ...]:
        """The checks that decide and could not look."""
        return tuple(one for one in self.checks if one.status == "unknown" and one.name.startswith(DECIDING))

    def to_json(self) -> dict[str, Any]:
        """The document ``floatscope.preflight/1``; numbers that JSON does not know are strings."""
        return dict(
            plain(
                {
                    "schema": SCHEMA,
                    "made_at": self.made_at,
                    "light": self.light,
                    "decision": self.decision,
                    "counts": self.counts,
                    "wanted": _wanted(self.wanted),
                    "checks": [one.to_json() for one in self.checks],
                    "recipes": {
                        name: {"status": status, "why": why} for name, (status, why) in self.recipes.items()
                    },
                    "versions": versions(self.facts),
                    "gpus": [
                        {
                            "name": one.name,
                            "capability": None if one.capability is None else list(one.capability),
                            "memory_bytes": one.memory_bytes,
                        }
                        for one in self.facts.gpus
                    ],
                    "casts": dict(self.casts),
                    "gemm": [dict(row) for row in self.gemm],
                    "layers": [dict(row) for row in self.layers],
                    "seconds": dict(self.seconds),
                }
            )
        )


def versions(facts: Facts) -> dict[str, str]:
    """What is installed, with the driver, CUDA, cuDNN and NCCL under names of their own."""
    found = {"python": facts.python, **facts.versions}
    more = {
        "driver": facts.driver,
        "cuda": facts.torch.get("cuda"),
        "hip": facts.torch.get("hip"),
        "cudnn": facts.torch.get("cudnn"),
        "nccl": facts.torch.get("nccl"),
        "cublaslt": facts.libraries.get("cublaslt"),
    }
    found |= {name: _version_text(value) for name, value in more.items()}
    return {name: text for name, text in found.items() if text}


def _version_text(value: object) -> str:
    if isinstance(value, tuple | list):
        return ".".join(str(part) for part in value)
    return "" if value is None else str(value)


def _wanted(wanted: Wanted) -> dict[str, Any]:
    cut = wanted.parallelism
    return {
        "recipe": wanted.recipe,
        "library": wanted.library,
        "model": None if wanted.model is None else _model(wanted.model),
        "micro_batch": wanted.micro_batch,
        "sequence": wanted.sequence,
        "parallelism": {
            "tensor": cut.tensor,
            "pipeline": cut.pipeline,
            "context": cut.context,
            "expert": cut.expert,
            "data": cut.data,
            "sequence": cut.sequence,
        },
        "resume": wanted.resume,
    }


def _model(shape: ModelShape) -> dict[str, Any]:
    return {"name": shape.name, "source": shape.source, "parameters": shape.parameters}
