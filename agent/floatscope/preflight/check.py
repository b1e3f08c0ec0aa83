"""One line of preflight's answer, and the whole answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["pass", "warn", "fail", "unknown", "not_applicable"]
STATUSES: tuple[Status, ...] = ("pass", "warn", "fail", "unknown", "not_applicable")


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    name: stable, dotted, lower case ("gpu.recipe", "shape.layers.*.mlp.down_proj").  area: "gpu",
    "software", "recipe", "framework", "environment", "shape", "casts", "checkpoint", "distribution", "gemm".
    read: what was read and from where, in one line ("torch 2.13.0, CUDA none").  why: why it matters.  do:
    what to do, "" for a pass.  source: what the rule rests on.  ``unknown`` is never ``pass``: it says what
    could not be read.
    """

    name: str
    area: str
    status: Status
    read: str
    why: str
    do: str = ""
    source: str = ""

    def to_json(self) -> dict[str, Any]:
        """All fields, by name."""
        return dict(vars(self))
