"""How many parameters one GPU has to do with, by pipeline stage, before data parallelism shards them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from floatscope.model_shapes.shape import Linear, ModelShape
from floatscope_diagnostics.plan.setup import Setup

Stage = Literal["only", "first", "last"]


@dataclass(frozen=True)
class Held:
    """Parameters of one GPU of a stage, unsharded.

    dense: of everything but routed experts.  expert: of its routed experts.  low_dense, low_expert: those of
    them in linears that go FP8.  block: of one layer (its largest gathered unit), block_low: those that go
    FP8.  ends: of embedding and head, which are gathered as units of their own.
    """

    dense: float
    expert: float
    low_dense: float
    low_expert: float
    block: float
    block_low: float
    ends: float

    def sharded(self, setup: Setup) -> float:
        """Of everything, after sharding over data (and context) parallelism; experts over what EP left."""
        return self.dense / setup.shards + self.expert / expert_shards(setup)

    def low_sharded(self, setup: Setup) -> float:
        """Of the linears that go FP8, after sharding."""
        return self.low_dense / setup.shards + self.low_expert / expert_shards(setup)

    @property
    def all(self) -> float:
        return self.dense + self.expert

    @property
    def low(self) -> float:
        return self.low_dense + self.low_expert


def expert_shards(setup: Setup) -> float:
    """Over how many GPUs the state of a routed expert is sharded: expert parallelism takes its part first."""
    return setup.shards / setup.parallelism.expert


def stages(setup: Setup) -> tuple[Stage, ...]:
    """The stages whose memory can be the largest."""
    return ("only",) if setup.parallelism.pipeline == 1 else ("first", "last")


def layers_of(shape: ModelShape, setup: Setup) -> int:
    """Layers of the fullest pipeline stage."""
    return -(-shape.layers // setup.parallelism.pipeline)


def is_low(linear: Linear, setup: Setup) -> bool:
    """Whether a linear goes FP8: all but routers, and the head only where it was asked for."""
    return linear.kind != "router" and (linear.kind != "head" or setup.fp8_head)


def held(shape: ModelShape, setup: Setup, stage: Stage) -> Held:
    """The parameters of one GPU of this stage. Tensor parallelism divides all but replicated linears and
    norms, expert parallelism the routed experts (Megatron-LM, theoretical_memory_usage.py).
    """
    cut = setup.parallelism
    part = layers_of(shape, setup) / shape.layers
    dense, expert = {True: 0.0, False: 0.0}, {True: 0.0, False: 0.0}
    for linear in shape.linears:
        if linear.kind == "head":
            continue
        own = linear.parameters * part / (cut.tensor if linear.split else 1)
        if linear.kind == "expert":
            expert[is_low(linear, setup)] += own / cut.expert
        else:
            dense[is_low(linear, setup)] += own
    layers = dense[True] + dense[False] + expert[True] + expert[False]
    low = dense[True] + expert[True]
    count = max(layers_of(shape, setup), 1)
    embedding, head = _ends(shape, setup, stage)
    head_low = head if setup.fp8_head else 0.0
    other = shape.other_parameters * part
    return Held(
        dense=dense[True] + dense[False] + embedding + head + other,
        expert=expert[True] + expert[False],
        low_dense=dense[True] + head_low,
        low_expert=expert[True],
        block=layers / count,
        block_low=low / count,
        ends=embedding + head,
    )


def _ends(shape: ModelShape, setup: Setup, stage: Stage) -> tuple[float, float]:
    """Parameters of embedding and head on this stage; a tied head has its own copy on the last stage."""
    tensor = setup.parallelism.tensor
    embedding = shape.embedding_parameters / tensor
    head = sum(one.parameters for one in shape.linears if one.kind == "head") / tensor
    if stage == "only":
        return embedding, 0.0 if shape.tied else head
    return (embedding, 0.0) if stage == "first" else (0.0, head)
