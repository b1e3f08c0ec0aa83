"""Which share of its peaks a GPU reaches in training, and how fast its links are; as a table with sources."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from floatscope.hardware.gpus import GpuModel
from floatscope.hardware.roofline import roofline
from floatscope_diagnostics.plan.setup import PlanError


@dataclass(frozen=True)
class Rates:
    """Shares of the dense BF16 peak, of bandwidth and of the roofline of a whole step; see rates.json.

    link_gb_s, network_gb_s: per GPU and direction, 10^9 bytes, before ``link_share``.  calibrated_on: the
    published case that ``step`` was set from, "" for an assumption.  step_band, speedup_band: relative errors
    to expect of a step time and of a speed-up.  stack: whose runs the shares are from.  step_over: relative
    error of a step time upwards.  expert_overlap, tensor_overlap: shares of that traffic
    that are hidden.  family_has_runs: a training run on this family of GPUs was published and checked.
    small_experts: products of experts so small that published steps take much longer than predicted.
    """

    family: str
    gemm: float
    bandwidth: float
    attention: float
    step: float
    elementwise_uncompiled: float
    link_gb_s: float
    link_share: float
    network_gb_s: float
    gpus_per_node: int
    step_band: float
    speedup_band: float
    calibrated_on: str
    verified: bool
    family_has_runs: bool
    source: str
    stack: str
    step_over: float
    expert_overlap: float
    tensor_overlap: float
    small_experts: bool = False

    def of_mixture(self, product: float) -> Rates:
        """The rates of a mixture of experts: a smaller share of the roofline, and the wide band; with small
        experts a step may take far longer. product: tokens x K x N of the smallest product of one expert.
        """
        table = _table()
        small = product < table["small_experts_below"]
        return replace(
            self,
            step=self.step * table["mixture_step"],
            step_band=table["unverified_step_band"],
            step_over=table["small_experts_step_over" if small else "mixture_step_over"],
            small_experts=small,
            verified=False,
            source=table["mixture_source"],
        )


def rates_of(
    gpu: GpuModel,
    *,
    stack: str = "torchtitan",
    link_gb_s: float | None = None,
    network_gb_s: float | None = None,
    gpus_per_node: int | None = None,
) -> Rates:
    """The rates of a GPU under a stack; given speeds of links replace the table's. A family without published
    runs of the stack has those of torchtitan.

    Raises PlanError for a GPU of a family the table does not have.
    """
    table = _table()
    family = next((row for row in table["families"] if _is_of(gpu, row)), None)
    if family is None:
        raise PlanError(f"{gpu.name} ({gpu.arch}): no published training speed of such a GPU is known")
    slow = gpu.capability is not None and any(name in gpu.name for name in table["pcie_names"])
    link = min(family["link_gb_s"], table["pcie_link_gb_s"]) if slow else family["link_gb_s"]
    own = family.get(stack, family)
    band = table["step_band"] if own["verified"] else table["unverified_step_band"]
    return Rates(
        family=family["key"],
        gemm=roofline().gemm_share,
        bandwidth=roofline().bandwidth_share,
        attention=own["attention"],
        step=own["step"],
        elementwise_uncompiled=table["elementwise_uncompiled"],
        link_gb_s=link if link_gb_s is None else link_gb_s,
        link_share=table["link_share"],
        network_gb_s=table["network_gb_s"] if network_gb_s is None else network_gb_s,
        gpus_per_node=_node(table, gpu) if gpus_per_node is None else gpus_per_node,
        step_band=band,
        step_over=band,
        expert_overlap=table["expert_overlap"][stack],
        tensor_overlap=table["tensor_overlap"][stack],
        speedup_band=table["speedup_band"],
        calibrated_on=own["calibrated_on"],
        verified=own["verified"],
        family_has_runs=family["verified"],
        source=own["source"],
        stack=stack if stack in family else "torchtitan",
    )


def _node(table: Mapping[str, Any], gpu: GpuModel) -> int:
    size: int = table["gpus_per_domain"].get(gpu.name, table["gpus_per_node"])
    return size


@cache
def _table() -> Mapping[str, Any]:
    text = files("floatscope_diagnostics.plan").joinpath("rates.json").read_text("utf-8")
    table: Mapping[str, Any] = json.loads(text)
    return table


def _is_of(gpu: GpuModel, row: Mapping[str, Any]) -> bool:
    if gpu.capability is None:
        return gpu.arch in row.get("archs", ())
    if "capabilities" not in row:
        return False
    low, high = row["capabilities"]
    return bool(tuple(low) <= gpu.capability < tuple(high))
