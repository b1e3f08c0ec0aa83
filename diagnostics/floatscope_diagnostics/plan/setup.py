"""How a model is to be trained: what a plan needs to know besides the model and the GPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from floatscope.model_shapes.shape import ModelShape, Parallelism

Sharding = Literal["zero0", "zero1", "zero2", "zero3", "fsdp"]
Recompute = Literal["none", "selective", "full"]
Attention = Literal["flash", "eager"]
Optimizer = Literal["fp32", "bf16-moments", "8bit", "remainders"]
Gradients = Literal["fp32", "bf16"]
Logits = Literal["full", "fused", "chunked"]
Stack = Literal["torchtitan", "megatron"]

MAX_GPUS = 10**7
MAX_MICRO_BATCH = 65_536
MAX_SEQUENCE = 2**27
MAX_ACCUMULATE = 10**6


class PlanError(ValueError):
    """Something that cannot be planned; the message says what was expected and what to do."""


@dataclass(frozen=True)
class Setup:
    """One training set-up.

    parallelism: its product without ``expert`` is ``gpus``.  micro_batch: sequences of one GPU in one pass.
    accumulate: micro-batches of one step.  sharding: "zero0" to "zero3" hold BF16 weights with an FP32 master
    (Megatron, DeepSpeed); "fsdp" holds FP32 weights, gathered in BF16 (FSDP2 as torchtitan uses it).
    recompute: "selective" recomputes every second matmul with flash attention (torchtitan's per-op choice),
    the attention scores with eager attention (arXiv 2205.05198).  optimizer: "fp32" Adam, "bf16-moments",
    "8bit" moments, "remainders" (16 bits of the master live in the BF16 weights).  logits: "full" keeps the
    logits in BF16 and twice in FP32, "fused" in BF16 and their gradient, "chunked" an eighth of full.
    primary_fp8: weights exist in FP8 only.  fp8_head: the output layer is converted too.  stack: whose
    published runs say what share of the roofline steps reach.  virtual: pieces that each pipeline stage's
    layers are cut into (interleaved 1F1B, arXiv 2104.04473).  expert_overlap, tensor_overlap: shares of the
    traffic to experts and of tensor parallelism that computation hides, 0 to 1; None: what is usual with the
    stack (rates.json).
    """

    gpus: int
    parallelism: Parallelism = field(default_factory=Parallelism)
    micro_batch: int = 1
    sequence: int = 4096
    accumulate: int = 1
    sharding: Sharding = "fsdp"
    recompute: Recompute = "none"
    attention: Attention = "flash"
    optimizer: Optimizer = "fp32"
    gradients: Gradients = "fp32"
    logits: Logits = "full"
    primary_fp8: bool = False
    fp8_all_gather: bool = False
    fp8_head: bool = False
    compiled: bool = True
    stack: Stack = "torchtitan"
    virtual: int = 1
    expert_overlap: float | None = None
    tensor_overlap: float | None = None

    @property
    def in_flight(self) -> float:
        """Micro-batches that the first pipeline stage holds at once: p with 1F1B, p + (p - 1) / v
        interleaved in v pieces (arXiv 2205.05198, section 4.2.3), never more than there are.
        """
        stages = self.parallelism.pipeline
        held = stages + ((stages - 1) / self.virtual if self.virtual > 1 else 0)
        return min(held, self.accumulate)

    @property
    def shards(self) -> int:
        """Over how many GPUs the state of dense layers is sharded: data times context parallelism."""
        return self.parallelism.data * self.parallelism.context

    @property
    def tokens(self) -> float:
        """Tokens of one micro-batch on one GPU."""
        return self.micro_batch * self.sequence / self.parallelism.context

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step of the whole job."""
        return self.micro_batch * self.sequence * self.accumulate * self.parallelism.data

    @property
    def gathers(self) -> bool:
        """Whether weights are sharded and gathered for use."""
        return self.sharding in ("zero3", "fsdp")


def with_rest(gpus: int, parallelism: Parallelism) -> Parallelism:
    """The parallelism with ``data`` = what the others leave of the GPUs.

    Raises PlanError where the GPUs cannot be divided so.
    """
    if not 1 <= gpus <= MAX_GPUS:
        raise PlanError(f"--gpus: expected 1 to {MAX_GPUS}, got {gpus}")
    for name in ("tensor", "pipeline", "context", "expert"):
        if getattr(parallelism, name) < 1:
            raise PlanError(f"{name} parallelism: expected 1 or more, got {getattr(parallelism, name)}")
    taken = parallelism.tensor * parallelism.pipeline * parallelism.context
    cut = f"tp {parallelism.tensor} x pp {parallelism.pipeline} x cp {parallelism.context} = {taken}"
    if gpus % taken:
        raise PlanError(
            f"{gpus} GPUs are not divisible by {cut}: change --gpus to a multiple of {taken}, or the cut"
        )
    return Parallelism(
        parallelism.tensor,
        parallelism.pipeline,
        parallelism.context,
        parallelism.expert,
        gpus // taken,
        parallelism.sequence,
    )


def check(shape: ModelShape, setup: Setup) -> list[str]:
    """What a reader should know of this set-up before the numbers.

    Raises PlanError for a set-up that cannot exist.
    """
    _in_range("--micro-batch", setup.micro_batch, MAX_MICRO_BATCH)
    _in_range("--sequence", setup.sequence, MAX_SEQUENCE)
    _in_range("--accumulate", setup.accumulate, MAX_ACCUMULATE)
    cut = setup.parallelism
    if cut.tensor > 1 and shape.heads % cut.tensor:
        raise PlanError(f"--tp {cut.tensor} does not divide the model's {shape.heads} attention heads")
    if cut.pipeline * setup.virtual > shape.layers:
        pieces = f" x --vp {setup.virtual}" if setup.virtual > 1 else ""
        raise PlanError(f"--pp {cut.pipeline}{pieces}: the model has only {shape.layers} layers")
    if setup.virtual < 1 or (setup.virtual > 1 and cut.pipeline == 1):
        raise PlanError(
            f"--vp {setup.virtual}: expected 1, or 2 and more pieces of each of --pp 2 and more stages"
        )
    for option, share in (("--expert-overlap", setup.expert_overlap), ("--tp-overlap", setup.tensor_overlap)):
        if share is not None and not 0 <= share <= 1:  # NaN is not either
            raise PlanError(f"{option}: expected a share from 0 to 1, got {share:g}")
    if setup.sequence % cut.context:
        raise PlanError(f"--sequence {setup.sequence} is not divisible by --cp {cut.context}")
    _check_experts(shape, setup)
    return list(_warnings(shape, setup))


def _check_experts(shape: ModelShape, setup: Setup) -> None:
    expert = setup.parallelism.expert
    if expert == 1:
        return
    if not shape.experts:
        raise PlanError(f"--ep {expert}: the model has no experts")
    if shape.experts % expert:
        raise PlanError(f"--ep {expert} does not divide the model's {shape.experts} experts")
    if setup.shards % expert:
        raise PlanError(
            f"--ep {expert} does not divide data x context parallelism ({setup.shards}), which it cuts"
        )


def _in_range(option: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise PlanError(f"{option}: expected 1 to {most}, got {value}")


def _warnings(shape: ModelShape, setup: Setup) -> list[str]:
    said: list[str] = []
    cut = setup.parallelism
    if shape.context and setup.sequence > shape.context:
        said.append(
            f"sequence {setup.sequence} is above the {shape.context} tokens the model's configuration allows"
        )
    if cut.tensor > 1 and shape.kv_heads % cut.tensor:
        said.append(
            f"tp {cut.tensor} does not divide the {shape.kv_heads} key and value heads: they are copied"
        )
    if cut.pipeline > 1 and shape.layers % cut.pipeline:
        said.append(
            f"{shape.layers} layers do not divide by pp {cut.pipeline}: memory is that of the fullest stage, "
            "time that of even stages"
        )
    if cut.pipeline > 1 and setup.accumulate < cut.pipeline:
        said.append(
            f"{setup.accumulate} micro-batches do not fill {cut.pipeline} pipeline stages: raise --accumulate"
        )
    return said
