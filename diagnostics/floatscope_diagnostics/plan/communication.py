"""Time of one step's communication that computation does not hide.

Assumptions, all printed with a plan: ring collectives at the achieved share of the slower of the links they
cross; across nodes all network cards of a node work on one collective; FSDP and gradient traffic overlaps
with computation but for the first layer's; traffic of tensor parallelism and to experts does as far as is
usual with the stack.
"""

from __future__ import annotations

from dataclasses import dataclass

from floatscope.model_shapes.shape import ModelShape
from floatscope_diagnostics.plan.activations import widths
from floatscope_diagnostics.plan.parameters import held
from floatscope_diagnostics.plan.rates import Rates
from floatscope_diagnostics.plan.recipes import Recipe
from floatscope_diagnostics.plan.setup import Setup

GIGA = 1e9
BACKWARD = 2 / 3
"""Share of a pass without recomputation that is backward."""


@dataclass(frozen=True)
class Communication:
    """Seconds per step on one GPU. total: of sharding traffic before overlap; the others are exposed."""

    sharding_total: float
    sharding: float
    tensor: float
    expert: float
    context: float

    @property
    def exposed(self) -> float:
        """What adds to the step."""
        return self.sharding + self.tensor + self.expert + self.context


def communication(
    shape: ModelShape, setup: Setup, rates: Rates, recipe: Recipe | None, compute_s: float
) -> Communication:
    """compute_s: seconds of one micro-batch's computation, which sharding traffic hides behind."""
    cut = setup.parallelism
    total, hidden = _sharding(shape, setup, rates, recipe, compute_s)
    first = total / max(shape.layers / cut.pipeline, 1)
    exposed = max(total - hidden, min(first, total)) if total else 0.0
    passes = setup.accumulate * (1 + (1 if setup.recompute == "full" else 0) + 1)
    return Communication(
        sharding_total=total,
        sharding=exposed,
        tensor=passes * _tensor(shape, setup, rates) * (1 - tensor_hidden(setup, rates)),
        expert=passes * _expert(shape, setup, rates) * (1 - expert_hidden(setup, rates)),
        context=passes * _context(shape, setup, rates),
    )


def bus_gb_s(rates: Rates, group: int, stride: int = 1) -> float:
    """Achieved bandwidth of a ring collective over ``group`` GPUs that are ``stride`` apart, in 10^9 bytes/s.

    Groups inside a node use its links; larger ones are limited by the node's network cards, shared by as many
    groups as ``stride`` says.
    """
    if group * stride <= rates.gpus_per_node:
        return rates.link_gb_s * rates.link_share
    cards = rates.network_gb_s * max(rates.gpus_per_node / stride, 1)
    return min(cards, rates.link_gb_s) * rates.link_share


def _sharding(
    shape: ModelShape, setup: Setup, rates: Rates, recipe: Recipe | None, compute_s: float
) -> tuple[float, float]:
    """Seconds of weight and gradient traffic of a step, and how much of it computation can hide."""
    cut = setup.parallelism
    if setup.shards == 1:
        return 0.0, 0.0
    own = held(shape, setup, "only" if cut.pipeline == 1 else "first")
    stride = cut.tensor
    speed = bus_gb_s(rates, setup.shards, stride) * GIGA
    moved = (setup.shards - 1) / setup.shards / speed
    gradient = 4.0 if setup.gradients == "fp32" else 2.0
    low = 2.0
    if recipe is not None and recipe.fp8_all_gather and (setup.fp8_all_gather or setup.primary_fp8):
        low = 1.0
    weights = 2.0 * (own.all - own.low) + low * own.low
    if setup.gathers:
        once = cut.pipeline > 1
        gathers = 1 if once else 2 * setup.accumulate
        reduces = 1 if once else setup.accumulate
        total = moved * (gathers * weights + reduces * gradient * own.all)
        return total, compute_s * setup.accumulate
    halves = moved * (gradient + (2.0 if setup.sharding != "zero0" else gradient)) * own.all
    return halves, compute_s * BACKWARD


def _tensor(shape: ModelShape, setup: Setup, rates: Rates) -> float:
    """One pass: two all-gathers and two reduce-scatters (or two all-reduces) of tokens x hidden per layer."""
    cut = setup.parallelism
    if cut.tensor == 1:
        return 0.0
    each = 2.0 * setup.tokens * shape.hidden * (cut.tensor - 1) / cut.tensor
    layers = shape.layers / cut.pipeline
    return 4 * each * layers / (bus_gb_s(rates, cut.tensor) * GIGA)


def _expert(shape: ModelShape, setup: Setup, rates: Rates) -> float:
    """One pass: tokens go to their experts and come back, once per layer with experts."""
    cut = setup.parallelism
    if cut.expert == 1:
        return 0.0
    each = 2.0 * setup.tokens * shape.hidden * widths(shape).routed * (cut.expert - 1) / cut.expert
    inside = cut.expert * cut.tensor <= rates.gpus_per_node
    speed = (rates.link_gb_s if inside else rates.network_gb_s) * rates.link_share * GIGA
    return 2 * each * shape.layers / cut.pipeline / speed


def tensor_hidden(setup: Setup, rates: Rates) -> float:
    """Share of the traffic of tensor parallelism that computation hides."""
    return rates.tensor_overlap if setup.tensor_overlap is None else setup.tensor_overlap


def expert_hidden(setup: Setup, rates: Rates) -> float:
    """Share of the traffic to experts that computation hides."""
    return rates.expert_overlap if setup.expert_overlap is None else setup.expert_overlap


def _context(shape: ModelShape, setup: Setup, rates: Rates) -> float:
    """One pass: keys and values of the other parts of the sequence, once per layer."""
    cut = setup.parallelism
    if cut.context == 1:
        return 0.0
    keys = 2 * 2.0 * setup.tokens * shape.kv_heads * shape.head_dim / min(cut.tensor, shape.kv_heads)
    speed = bus_gb_s(rates, cut.context, cut.tensor) * GIGA
    return keys * (cut.context - 1) * shape.layers / cut.pipeline / speed
