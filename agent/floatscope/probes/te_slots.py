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

from floatscope.probes.coordinates import standing_of

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


def expert_rank_of(scene: Any) -> int:
    """The rank's expert-parallel coordinate, 0 where it is not known (scene: probes.probe.Scene)."""
    return int(standing_of(scene.model, scene.config).coordinates.get("ep", 0))


def slots_of(module: Any, layer: str, *, forward: bool, count: int, expert_rank: int = 0) -> dict[int, Slot]:
    """The module's columns that mean something, by index.

    module: with ``fp8_meta``, or ``_fp8_metas`` of a basic operation.  layer: its name.  count: columns of
    its scale vector in this direction.  expert_rank: the rank's expert-parallel coordinate, so that experts
    are numbered over all ranks.
    """
    if type(module).__name__ == "DotProductAttention":
        parts = ATTENTION_FORWARD if forward else ATTENTION_BACKWARD
        role = "output" if forward else "grad_output"
        return {i: Slot(f"{layer}.{part}", role, is_optional=True) for i, part in parts.items() if i < count}
    if not isinstance(getattr(module, "fp8_meta", None), dict):
        return _operation_slots(module, layer, forward=forward, count=count, expert_rank=expert_rank)
    meta: Mapping[str, Any] = module.fp8_meta
    gemms = int(meta.get("num_gemms", 1))
    roles = FORWARD_ROLES if forward else BACKWARD_ROLES
    suffixes = _suffixes(module, gemms, expert_rank)
    found: dict[int, Slot] = {}
    for gemm in range(gemms):
        for at, role in enumerate(roles):
            index = _index(module, gemm, at, gemms=gemms, roles=len(roles), count=count)
            if index < count:
                found[index] = Slot(layer + suffixes[gemm], role, is_optional=role in OPTIONAL_ROLES)
    return found


def _operation_slots(
    module: Any, layer: str, *, forward: bool, count: int, expert_rank: int
) -> dict[int, Slot]:
    """Columns of a basic operation (``te.ops``): a linear one casts input and weight, and grad_output.

    transformer_engine/pytorch/ops/basic/: ``num_quantizers``; grouped operations have a set per group.
    Other operations cast what their neighbours hand them; their columns have no name of their own.
    """
    groups = getattr(module, "num_groups", None)
    roles = ("input", "weight") if forward else ("grad_output",)
    if isinstance(groups, int) and count == groups * len(roles):
        names = [f"{layer}.experts.{expert_rank * groups + group}" for group in range(groups)]
    elif hasattr(module, "weight") and count == len(roles):
        names = [layer]
    else:
        return {}
    slots = [Slot(name, role, is_optional=False) for name in names for role in roles]
    return dict(enumerate(slots))


def _suffixes(module: Any, gemms: int, expert_rank: int) -> list[str]:
    """What distinguishes the GEMMs of one module."""
    if type(module).__name__ == "GroupedLinear":
        return [f".experts.{expert_rank * gemms + gemm}" for gemm in range(gemms)]
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
