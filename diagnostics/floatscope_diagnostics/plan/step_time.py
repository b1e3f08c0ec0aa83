"""Time of one optimizer step by roofline, part by part, in BF16 and in a recipe."""

from __future__ import annotations

from dataclasses import dataclass

from floatscope.hardware.gpus import GpuModel
from floatscope.hardware.roofline import TERA
from floatscope.model_shapes.shape import ModelShape
from floatscope_diagnostics.plan.activations import widths
from floatscope_diagnostics.plan.communication import communication
from floatscope_diagnostics.plan.gemms import LinearTime, linear_times
from floatscope_diagnostics.plan.parameters import held
from floatscope_diagnostics.plan.rates import Rates
from floatscope_diagnostics.plan.recipes import Recipe
from floatscope_diagnostics.plan.setup import Setup

FLASH_BACKWARD = 2.5
"""Matrix products of flash attention: two forward, five backward (arXiv 2205.14135)."""
OPTIMIZER_BYTES = 30.0
"""Per parameter: gradient read, FP32 master and two moments read and written, BF16 weight written."""
LOSS_BYTES = {"full": 30.0, "fused": 12.0, "chunked": 30.0}
"""Per token and logit: BF16 logits, two FP32 copies and the gradient, written and read (derived)."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step on one GPU, by part; the achieved share of the roofline is already in them.

    linears_low: linears that the recipe converts; linears_high: those that stay BF16.  bubble: idle time of
    the pipeline.  tokens_per_step: of the whole job.
    """

    linears_low: float
    linears_high: float
    attention: float
    elementwise: float
    optimizer: float
    sharding: float
    tensor: float
    expert: float
    context: float
    bubble: float
    tokens_per_step: int
    gpus: int
    linears: tuple[LinearTime, ...] = ()

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by part, as a reader calls them."""
        return {
            "linear layers": self.linears_low + self.linears_high,
            "attention": self.attention,
            "elementwise and loss": self.elementwise,
            "optimizer": self.optimizer,
            "weight and gradient traffic": self.sharding,
            "tensor parallel traffic": self.tensor,
            "expert traffic": self.expert,
            "context parallel traffic": self.context,
            "pipeline bubble": self.bubble,
        }

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    @property
    def tokens_per_s_per_gpu(self) -> float:
        return self.tokens_per_step / self.seconds / self.gpus

    @property
    def dominates(self) -> str:
        """The largest part."""
        return max(self.parts.items(), key=lambda item: item[1])[0]


def step_time(
    shape: ModelShape, gpu: GpuModel, setup: Setup, rates: Rates, recipe: Recipe | None
) -> StepTime:
    """The predicted step; recipe None is BF16.

    Everything but traffic and bubble is divided by the achieved share of the roofline (rates.json).
    """
    linears = linear_times(shape, gpu, setup, recipe)
    # Which linears "go low" is asked of the set-up, so that BF16 can say which share of it would.
    low_kinds = {"attention", "mlp", "expert"} | ({"head"} if setup.fp8_head else set())
    low = sum(one.low_s for one in linears if one.kind in low_kinds) / rates.step
    high = sum(one.low_s for one in linears if one.kind not in low_kinds) / rates.step
    attention = attention_seconds(shape, gpu, setup, rates) / rates.step
    elementwise = elementwise_seconds(shape, gpu, setup, rates) / rates.step
    once = low + high + attention + elementwise
    moved = communication(shape, setup, rates, recipe, once)
    n, stages = setup.accumulate, setup.parallelism.pipeline
    busy = once * n + moved.tensor + moved.expert + moved.context
    return StepTime(
        linears_low=low * n,
        linears_high=high * n,
        attention=attention * n,
        elementwise=elementwise * n,
        optimizer=optimizer_seconds(shape, gpu, setup, rates) / rates.step,
        sharding=moved.sharding,
        tensor=moved.tensor,
        expert=moved.expert,
        context=moved.context,
        bubble=busy * (stages - 1) / (n * setup.virtual),
        tokens_per_step=setup.tokens_per_step,
        gpus=setup.gpus,
        linears=linears,
    )


def attention_flops_per_token(shape: ModelShape, setup: Setup) -> float:
    """Of the scores and the weighted sum, forward and backward, for a token of one GPU: 2 s (heads x head
    size) forward with a causal mask, twice that where the kernel does not skip what the mask hides.
    """
    queries = shape.heads * shape.head_dim / setup.parallelism.tensor
    layers = shape.layers / setup.parallelism.pipeline
    eager = setup.attention == "eager"
    forward = (4 if eager else 2) * setup.sequence * queries * layers
    repeats = setup.recompute == "full" or (setup.recompute == "selective" and eager)
    return forward * (1 + (2.0 if eager else FLASH_BACKWARD) + (1 if repeats else 0))


def attention_seconds(shape: ModelShape, gpu: GpuModel, setup: Setup, rates: Rates) -> float:
    """Of one micro-batch, at the family's share of the BF16 peak."""
    flops = attention_flops_per_token(shape, setup) * setup.tokens
    return flops / (gpu.bf16_tflops * TERA * rates.attention)


def elementwise_seconds(shape: ModelShape, gpu: GpuModel, setup: Setup, rates: Rates) -> float:
    """Norms, residuals, rotary embedding, gating and loss of one micro-batch, by memory traffic.

    Per token and layer, fused: 8h + 2kv + 3f values of 2 bytes forward, twice that backward. Derived.
    """
    w, cut = widths(shape), setup.parallelism
    layer = 6 * (6 * w.hidden + 2 * w.queries + 2 * w.keys + 3 * w.ffn + 4 * w.routed * w.hidden)
    repeats = 4 / 3 if setup.recompute == "full" else 1.0
    fused = 1.0 if setup.compiled else rates.elementwise_uncompiled
    loss = LOSS_BYTES[setup.logits] * shape.vocab
    each = (layer * repeats * fused * shape.layers / cut.pipeline + loss) / cut.tensor
    return each * setup.tokens / (gpu.bandwidth_tb_s * TERA * rates.bandwidth)


def optimizer_seconds(shape: ModelShape, gpu: GpuModel, setup: Setup, rates: Rates) -> float:
    """Adam's traffic over the parameters this GPU updates."""
    own = held(shape, setup, "only" if setup.parallelism.pipeline == 1 else "first")
    count = own.all if setup.sharding == "zero0" else own.sharded(setup)
    return OPTIMIZER_BYTES * count / (gpu.bandwidth_tb_s * TERA * rates.bandwidth)


def fewest_flops_per_token(shape: ModelShape, setup: Setup) -> float:
    """What no BF16 step can do without: as for MFU, with attention's half that a causal mask leaves."""
    return model_flops_per_token(shape, setup) - 0.5 * _attention_model_flops(shape, setup)


def model_flops_per_token(shape: ModelShape, setup: Setup) -> float:
    """6 per parameter of a linear that a token meets, and attention's 12 L (heads x head size) s, as PaLM
    counts them (arXiv 2204.02311, appendix B): the numerator of MFU.
    """
    linears = sum(one.count * one.k * one.n * one.tokens_share for one in shape.linears)
    return 6.0 * linears + _attention_model_flops(shape, setup)


def _attention_model_flops(shape: ModelShape, setup: Setup) -> float:
    return 12.0 * shape.layers * shape.heads * shape.head_dim * setup.sequence
