"""Which layer and role a slot of Transformer Engine's scale state belongs to.

Each FP8 module has a vector of scales per direction, with the meaning of ``FP8FwdTensors`` and
``FP8BwdTensors`` (transformer_engine/pytorch/csrc/common.h): forward input, weight, output per GEMM, backward
grad_output, grad_input per GEMM. Attention uses the same slots with a meaning of its own
(cpp_extensions/fused_attn.py, ``META_*``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FORWARD_ROLES = ("input", "weight", "output")
BACKWARD_ROLES = ("grad_output", "grad_input")
OPTIONAL_ROLES = frozenset({"output", "grad_input"})
"""Roles whose slots are only used with FP8 outputs and gradients; elsewhere amax stays 0 and scale 1."""

ATTENTION_FORWARD = {2: "qkv", 3: "o", 8: "s"}  # GEMM1_OUTPUT, GEMM2_INPUT, GEMM3_OUTPUT
ATTENTION_BACKWARD = {0: "qkv", 3: "o", 5: "s"}  # GRAD_OUTPUT1 dQKV, GRAD_INPUT2 dO, GRAD_INPUT3 dP


@dataclass(frozen=True)
class Slot:
    """One column of a module's scale state."""

    layer: str
    role: str
    is_optional: bool

    @property
    def name(self) -> str:
        """The tensor's name."""
        return f"{self.layer}/{self.role}"


def slots_of(module: Any, layer: str, *, forward: bool, count: int) -> dict[int, Slot]:
    """The module's columns that mean something, by index.

    module: with ``fp8_meta``.  layer: its name.  count: columns of its scale vector in this direction.
    """
    if type(module).__name__ == "DotProductAttention":
        parts = ATTENTION_FORWARD if forward else ATTENTION_BACKWARD
        role = "output" if forward else "grad_output"
        return {i: Slot(f"{layer}.{part}", role, is_optional=True) for i, part in parts.items() if i < count}
    meta: Mapping[str, Any] = module.fp8_meta
    gemms = int(meta.get("num_gemms", 1))
    roles = FORWARD_ROLES if forward else BACKWARD_ROLES
    suffixes = _suffixes(module, gemms)
    found: dict[int, Slot] = {}
    for gemm in range(gemms):
        for at, role in enumerate(roles):
            index = _index(module, gemm, at, gemms=gemms, roles=len(roles), count=count)
            if index < count:
                found[index] = Slot(layer + suffixes[gemm], role, is_optional=role in OPTIONAL_ROLES)
    return found


def _suffixes(module: Any, gemms: int) -> list[str]:
    """What distinguishes the GEMMs of one module."""
    if type(module).__name__ == "GroupedLinear":
        return [f".experts.{gemm}" for gemm in range(gemms)]
    if gemms == 1:
        return [""]
    if gemms == 2:  # LayerNormMLP
        return [".fc1", ".fc2"]
    return [f".gemm{gemm}" for gemm in range(gemms)]


def _index(module: Any, gemm: int, at: int, *, gemms: int, roles: int, count: int) -> int:
    """Column of the ``at``-th role of a GEMM.

    Slots of a GEMM lie side by side, except in GroupedLinear before 2.0, which keeps all inputs, then all
    weights, then all outputs; its ``_offsets`` tell.
    """
    offsets = getattr(module, "_offsets", None)
    if isinstance(offsets, dict) and roles == len(FORWARD_ROLES) and gemms > 1:
        second = offsets.get(FORWARD_ROLES[1])
        if second == gemms and count >= gemms * roles:
            return at * gemms + gemm
    return gemm * roles + at
