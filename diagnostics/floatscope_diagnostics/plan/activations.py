"""Bytes of activations that a layer keeps for its backward pass, per token.

The terms are those of Korthikanti et al. (arXiv 2205.05198, section 4.1): for a GPT layer with dropout and
GELU they add up to 34 h + 5 a s, for a Llama layer (RMSNorm, SwiGLU, flash attention, no dropout) to
12 h + 4 kv + 6 f; Transformer Engine in FP8 saves the inputs of linears in one byte: 11 h + 4 kv + 5 f.
"""

from __future__ import annotations

from dataclasses import dataclass

from floatscope.model_shapes.shape import ModelShape
from floatscope_diagnostics.plan.recipes import Recipe
from floatscope_diagnostics.plan.setup import Setup

LOGIT_BYTES = {"full": 10.0, "fused": 4.0, "chunked": 10.0 / 8}
"""Per token and vocabulary entry: BF16 and two FP32 copies (the usual cross-entropy), BF16 and its gradient
where the loss is compiled, an eighth of full in chunks."""

TENSOR_PARALLEL_BUFFERS = 6
"""Unsharded BF16 tensors of tokens x hidden that tensor parallelism with sequence parallelism holds at once:
gathered input and partial sums of attention and MLP of one layer, gathered input and its gradient at the
head. Derived from the dataflow of section 4.2.2 of arXiv 2205.05198."""


@dataclass(frozen=True)
class Widths:
    """Features of one layer, averaged over the model's layers.

    hidden; queries: heads x head size; keys: key heads x head size; ffn: width of the MLP that a token meets,
    routed experts included; routed: experts per token, averaged over all layers.
    """

    hidden: float
    queries: float
    keys: float
    ffn: float
    routed: float


def widths(shape: ModelShape) -> Widths:
    """The widths of a model's average layer. The MLP's is read off its row-parallel (down) linears."""
    down = [one for one in shape.linears if one.split == "k" and one.kind in ("mlp", "expert")]
    routed = sum(one.count * one.tokens_share for one in down if one.kind == "expert")
    return Widths(
        hidden=shape.hidden,
        queries=shape.heads * shape.head_dim,
        keys=shape.kv_heads * shape.head_dim,
        ffn=sum(one.count * one.tokens_share * one.k for one in down) / shape.layers,
        routed=routed / shape.layers,
    )


def layer_bytes(shape: ModelShape, setup: Setup, recipe: Recipe | None) -> float:
    """Bytes per token that one layer's forward pass leaves for backward without any recomputation."""
    w = widths(shape)
    low = 2.0 if recipe is None or recipe.saved_input is None else recipe.saved_input
    doubled = 0.0 if low == 2.0 else low  # the attention output is kept in BF16 and as the linear's input
    masks = 0.0 if shape.gated else 2.0
    whole = (4 + 2 * low + masks) * w.hidden + 4 * w.routed * w.hidden
    cut = (4 + doubled) * w.queries + 4 * w.keys + (4 + low if shape.gated else 2 + low) * w.ffn
    cut += scores_bytes(shape, setup)
    return whole / _whole_by(setup) + cut / setup.parallelism.tensor


def scores_bytes(shape: ModelShape, setup: Setup) -> float:
    """Bytes per token of softmax, its dropout mask and output: 5 a s; flash attention keeps none."""
    return 5.0 * shape.heads * setup.sequence if setup.attention == "eager" else 0.0


def kept_bytes(shape: ModelShape, setup: Setup, recipe: Recipe | None) -> float:
    """Bytes per token and layer that are kept from forward to backward under the recomputation chosen."""
    if setup.recompute == "none":
        return layer_bytes(shape, setup, recipe)
    tensor = setup.parallelism.tensor
    w = widths(shape)
    if setup.recompute == "full":
        return 2 * w.hidden / _whole_by(setup)
    if setup.attention == "eager":
        return layer_bytes(shape, setup, recipe) - scores_bytes(shape, setup) / tensor
    # torchtitan's per-op choice: the layer's input, the attention output and every second matmul's output
    # (query, value and the first of the MLP; the last of the MLP too where the compiler cannot drop it).
    kept = 2 * w.queries + 2 * w.queries + 2 * w.keys + 2 * w.ffn + (0 if setup.compiled else 2 * w.hidden)
    return 2 * w.hidden / _whole_by(setup) + kept / tensor


def working_bytes(shape: ModelShape, setup: Setup, recipe: Recipe | None) -> float:
    """Bytes per token besides the kept ones: a layer being recomputed, buffers of tensor parallelism."""
    again = 0.0 if setup.recompute == "none" else layer_bytes(shape, setup, recipe)
    cut = setup.parallelism
    gathered = TENSOR_PARALLEL_BUFFERS * 2.0 * shape.hidden if cut.tensor > 1 and cut.sequence else 0.0
    return again + gathered


def logit_bytes(shape: ModelShape, setup: Setup) -> float:
    """Bytes per token of the logits and what the loss makes of them."""
    return LOGIT_BYTES[setup.logits] * shape.vocab / setup.parallelism.tensor


def _whole_by(setup: Setup) -> int:
    """By how much the tensors that tensor parallelism alone does not cut are divided."""
    return setup.parallelism.tensor if setup.parallelism.sequence else 1
