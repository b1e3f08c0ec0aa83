"""Memory of one GPU by part, as an interval: from what is alive at once to the sum of all parts x 1.25."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from floatscope.hardware.gpus import GpuModel
from floatscope.model_shapes.shape import ModelShape
from floatscope_diagnostics.plan.activations import kept_bytes, logit_bytes, working_bytes
from floatscope_diagnostics.plan.parameters import Held, Stage, held, layers_of, stages
from floatscope_diagnostics.plan.recipes import Recipe
from floatscope_diagnostics.plan.setup import MAX_MICRO_BATCH, Setup

UPPER = 1.25
"""Published peaks are up to a fifth above the sum of parts (published.json); the rest is named in REST."""
REST = "memory the allocator reserves but does not use, NCCL buffers, workspaces, the CUDA context"

MOMENTS = {"fp32": 8.0, "bf16-moments": 4.0, "8bit": 2.0 + 8 / 256, "remainders": 8.0}
"""Bytes per parameter of Adam's two moments; 8 bit: one FP32 scale per 256 values (torchao.optim)."""
MASTER = {"fp32": 4.0, "bf16-moments": 4.0, "8bit": 4.0, "remainders": 2.0}
GRADIENT = {"fp32": 4.0, "bf16": 2.0}

Fits = Literal["fits", "may not fit", "does not fit"]


@dataclass(frozen=True)
class Part:
    """One part of the memory of a GPU, in bytes, and what it consists of."""

    name: str
    bytes: float
    note: str = ""


@dataclass(frozen=True)
class Memory:
    """Memory of the fullest GPU, in bytes. capacity: of the GPU, 10^9 bytes per GB of the table.

    late_gradients: gradients are allocated one by one as the backward pass frees activations (a single
    micro-batch, gradients set to None, as PyTorch does), so the two are never whole at once.
    """

    parts: tuple[Part, ...]
    capacity: float
    stage: Stage
    late_gradients: bool = False

    @property
    def estimate(self) -> float:
        """Sum of the parts."""
        return sum(part.bytes for part in self.parts)

    @property
    def lower(self) -> float:
        """The lower end: what is alive at once at least, before the backward pass or after it."""
        if not self.late_gradients:
            return self.estimate
        return self.estimate - min(self.part("gradients"), self.part("activations") + self.part("logits"))

    @property
    def upper(self) -> float:
        """The upper end."""
        return self.estimate * UPPER

    @property
    def fits(self) -> Fits:
        """Against the GPU's memory: both ends of the interval, only the lower one, or neither."""
        if self.upper <= self.capacity:
            return "fits"
        return "may not fit" if self.lower <= self.capacity else "does not fit"

    def part(self, name: str) -> float:
        """Bytes of one part."""
        return next(part.bytes for part in self.parts if part.name == name)


def memory(shape: ModelShape, gpu: GpuModel, setup: Setup, recipe: Recipe | None) -> Memory:
    """Memory of the fullest GPU in training; recipe None is BF16."""
    found = [_stage(shape, gpu, setup, recipe, stage) for stage in stages(setup)]
    return max(found, key=lambda one: one.estimate)


def state_bytes(shape: ModelShape, gpu: GpuModel, setup: Setup, recipe: Recipe | None) -> float:
    """Weights, their copies, gradients and optimizer of the fullest GPU, in bytes."""
    found = memory(shape, gpu, setup, recipe)
    return sum(found.part(name) for name in ("weights", "FP8 copies", "gradients", "master + optimizer"))


def largest_micro_batch(shape: ModelShape, gpu: GpuModel, setup: Setup, recipe: Recipe | None) -> int:
    """The largest micro-batch whose upper estimate fits, 0 if not even one sequence does."""
    low, high = 0, MAX_MICRO_BATCH + 1
    while high - low > 1:
        middle = (low + high) // 2
        fits = memory(shape, gpu, replace(setup, micro_batch=middle), recipe).fits == "fits"
        low, high = (middle, high) if fits else (low, middle)
    return low


def _stage(shape: ModelShape, gpu: GpuModel, setup: Setup, recipe: Recipe | None, stage: Stage) -> Memory:
    own = held(shape, setup, stage)
    tokens = setup.tokens
    flying = setup.in_flight if stage == "first" else 1.0
    kept = kept_bytes(shape, setup, recipe) * layers_of(shape, setup) * tokens * flying
    logits = 0.0 if stage == "first" else logit_bytes(shape, setup) * tokens
    working = working_bytes(shape, setup, recipe) * tokens
    parts = (
        *_state(own, gpu, setup, recipe),
        _gathered(own, setup, recipe),
        Part("activations", kept, _recomputed(setup, flying)),
        Part("working set", working, "a layer recomputed, buffers of tensor parallelism"),
        Part("logits", logits, f"{setup.logits} cross-entropy"),
    )
    late = setup.sharding == "fsdp" and setup.accumulate == 1
    return Memory(parts, gpu.memory_gb * 1e9, stage, late)


def _state(own: Held, gpu: GpuModel, setup: Setup, recipe: Recipe | None) -> tuple[Part, ...]:
    """Weights, copies, gradients, optimizer: bytes per parameter of Rajbhandari et al. (arXiv 1910.02054) and
    Megatron-LM's theoretical_memory_usage.py.
    """
    everything, low = own.all, own.low
    sharded, low_sharded = own.sharded(setup), own.low_sharded(setup)
    primary = setup.primary_fp8 and recipe is not None
    fsdp = setup.sharding == "fsdp"
    stage = 3 if fsdp else int(setup.sharding[-1])
    here, low_here = (sharded, low_sharded) if stage == 3 else (everything, low)
    gradients = GRADIENT[setup.gradients] * (sharded if stage >= 2 else everything)
    moments = MOMENTS[setup.optimizer] * (sharded if stage >= 1 else everything)
    if fsdp and not primary:
        weights, master = 4.0 * sharded, 0.0
    else:
        weights = 2.0 * (here - low_here if primary else here)
        master = MASTER[setup.optimizer] * (sharded if stage >= 1 else everything)
    copies, note = _copies(own, low_here, gpu, setup, recipe)
    return (
        Part("weights", weights, "FP32, sharded" if fsdp and not primary else "BF16"),
        Part("FP8 copies", copies, note),
        Part("gradients", gradients, setup.gradients.upper()),
        Part("master + optimizer", master + moments, f"Adam, {setup.optimizer}"),
    )


def _copies(
    own: Held, low_here: float, gpu: GpuModel, setup: Setup, recipe: Recipe | None
) -> tuple[float, str]:
    """Low-precision copies of weights: kept from forward to backward; where weights are gathered, only those
    of the gathered layers.
    """
    if recipe is None:
        return 0.0, ""
    each = recipe.copies(gpu)
    kinds = "two copies" if each > 1.5 * recipe.weight_copy else "one copy"
    if setup.primary_fp8:
        return each * low_here, f"the weights themselves, {kinds}"
    if setup.gathers and not _stays_gathered(setup):
        return each * 2 * own.block_low, f"{kinds} of the gathered layers"
    return each * own.low, kinds


def _gathered(own: Held, setup: Setup, recipe: Recipe | None) -> Part:
    """Weights gathered for use: this layer, the next one, embedding and head. With FSDP2 and a pipeline the
    whole stage stays gathered and its gradients unsharded until the last micro-batch (torchtitan's default).
    """
    if not setup.gathers or setup.shards == 1:
        return Part("gathered weights", 0.0)
    low = 1.0 if recipe is not None and _gathers_fp8(setup, recipe) else 2.0
    if _stays_gathered(setup):
        weights = 2.0 * (own.all - own.low) + low * own.low
        sums = GRADIENT[setup.gradients] * own.all if setup.accumulate > 1 else 0.0
        return Part("gathered weights", weights + sums, "the stage's weights and its unsharded gradients")
    block = 2.0 * (own.block - own.block_low) + low * own.block_low
    return Part("gathered weights", 2 * block + 2.0 * own.ends, "two layers, embedding and head")


def _stays_gathered(setup: Setup) -> bool:
    return setup.sharding == "fsdp" and setup.parallelism.pipeline > 1


def _gathers_fp8(setup: Setup, recipe: Recipe) -> bool:
    return recipe.fp8_all_gather and (setup.fp8_all_gather or setup.primary_fp8)


def _recomputed(setup: Setup, flying: float) -> str:
    said = {"none": "nothing recomputed", "full": "layers recomputed"}.get(setup.recompute, "")
    if not said:
        said = "every second matmul recomputed" if setup.attention == "flash" else "scores recomputed"
    return said + (f", {flying:.3g} micro-batches in flight" if flying > 1 else "")
