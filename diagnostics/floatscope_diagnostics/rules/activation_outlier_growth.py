"""FS401 activation outlier growth.

What it checks
    Whether the largest value of one layer's activations, or of the weights that make them, grows away from
    all other layers.
Why it matters
    One channel (often of a SwiGLU) that grows without bound takes the scale of the whole tensor with it: all
    other channels lose their bits, long before the loss shows it.
How it decides
    amax of a weight or an input rises step after step, far above its level and against the other layers, and
    does not come back, while learning rate and optimizer are unchanged. A jump that a delayed scale has to
    follow is stale scale saturation; growth of all layers at once is training, not a fault. Growth over
    hundreds of steps that costs the tensor no precision is a note, no alarm: layers differ in speed.
What excludes it
    A learning rate, an update or a loss that jumped before; warm-up; more than one block; a jump that
    does not go on; FP16 on its way to the format's limit (activation overflow); query and key weights
    (attention logit growth).
Known false positives
    Young runs: the last layer's SwiGLU output may grow eightfold in a hundred steps while it learns;
    slower than 5 % a step is therefore only a note unless it costs the tensor precision.
What to do
    Clamp or smooth the SwiGLU output, keep this layer's input in BF16, or use a block recipe.
Source
    Measured: a channel growing by 1.15 a step shows in the weight's amax after 13 steps and in the loss never
    (0.003). Run without FP8 it looks the same: it is the model, FP8 only suffers first.
"""

from __future__ import annotations

from collections.abc import Iterator

from floatscope_diagnostics.episodes import Symptom
from floatscope_diagnostics.growth import attention_output, attention_weights, of_warm_up
from floatscope_diagnostics.precision import fitting
from floatscope_diagnostics.rule import (
    Evidence,
    Finding,
    Need,
    Remedy,
    Rule,
    RunFacts,
    Symptoms,
    Window,
    about,
    proof_after,
    shared,
)
from floatscope_diagnostics.thresholds import Threshold

GROWTH_ROWS = 3  # shorter is an outlier step
GROWN = Threshold(
    "growth_log2",
    "octaves",
    0.0,
    0.0,
    32.0,
    "A layer whose largest value has grown by less than this above its level is left out; 0 leaves it "
    "to the limit of the tensor itself.",
)
# from 60 % of the limit to the limit: a factor of 1.05 a row; learning layers take 40
FAST = Threshold(
    "fast_rows",
    "logged steps",
    24.0,
    1.0,
    100000.0,
    "Growth that reaches its limit within so many logged steps is an alarm; slower growth is one only "
    "if it costs precision.",
)
GROWN_SINCE_LOG2 = 1.0  # octaves beyond the first row, in two rows: one alone is an outlier
JUMP_ROWS = 16  # an average that takes 1.5 octaves a row into account passes its limit within
SUPPORT = ("sqnr_drop", "underflow", "underflow_trend")  # what the rest of the tensor loses by it
MAX_LAYERS = 2  # one block's pair of layers; more is the whole network moving
MOVERS = ("lr_jump", "norm_jump", "update_jump", "loss_jump", "resumed")
FP8 = Remedy(
    "Limit the growing channel: clamp or smooth the SwiGLU output, more weight decay or a lower learning "
    "rate for this layer; keep this input in BF16 or scale it in blocks.",
    {
        "transformer_engine": "Float8BlockScaling() or MXFP8BlockScaling() for this layer; or "
        "leave it outside te.autocast",
        "torchao": 'Float8LinearConfig.from_recipe_name("rowwise")',
        "megatron": "--fp8-recipe blockwise (or mxfp8); --activation-func-clamp-value for MoE",
        "deepspeed": "exclude the layer from the FP8 region",
    },
)
PLAIN = Remedy(
    "Limit the growing channel: clamp or smooth the SwiGLU output, more weight decay or a lower learning "
    "rate for this layer. In FP16 run the layer in BF16 before it reaches 65,504.",
    {
        "transformer_engine": "params_dtype=torch.bfloat16 where it is FP16",
        "torchao": "torch.autocast(dtype=torch.bfloat16) where it is FP16",
        "megatron": "--bf16 instead of --fp16; --activation-func-clamp-value for MoE",
        "deepspeed": '"bf16": {"enabled": true} instead of "fp16"',
    },
)

ATTENTION = Remedy(
    "Change the attention backend, or compute its softmax and row sums in FP32; normalise queries and keys. "
    "Go back to before the growth began.",
    {
        "transformer_engine": "NVTE_FLASH_ATTN=0 or NVTE_FUSED_ATTN=0 to change the attention backend; "
        "qk_norm_type='RMSNorm' in MultiheadAttention and TransformerLayer",
        "torchao": "torch.nn.attention.sdpa_kernel(SDPBackend.MATH) around the attention, to compare",
        "megatron": "--attention-backend unfused; --attention-softmax-in-fp32; --qk-layernorm",
        "deepspeed": "no setting: change the attention module",
    },
)


def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """One finding per layer that grows away from the others."""
    delayed = run.recipe_name == "fp8_delayed_scaling"
    for s in symptoms.of("amax_jump", "amax_trend"):
        forward = tuple(t for t in s.tensors if not t.endswith(("grad_output", "grad_input", "grad_weight")))
        layers = {t.rpartition("/")[0] for t in forward}
        if not forward or len(layers) > MAX_LAYERS or (s.signal == "amax_jump" and s.rows < GROWTH_ROWS):
            continue
        if s.peak < GROWN.of(run):
            continue
        if any(m.onset <= s.onset <= m.last + 64 for m in symptoms.of(*MOVERS)):
            continue
        limited = {t for n in symptoms.of("near_limit") for t in n.tensors if not t.endswith("/weight")}
        if of_warm_up(s, symptoms) or limited & set(forward):
            continue  # warm-up, or FP16 on its way to the limit: activation overflow
        if attention_weights(s):
            continue  # see attention logit growth
        growing = s.second > _jumped(s, symptoms) + GROWN_SINCE_LOG2
        if delayed and not growing:
            continue  # one jump: the scale has to follow it, see stale scale saturation
        first = tuple(t for t in s.first if t in forward) or forward
        quick = (s.detected or s.onset) - s.onset <= FAST.of(run) * symptoms.stride
        hurt = [q for q in symptoms.of(*SUPPORT) if q.onset >= s.onset and layers & _layers(q)]
        yield about(
            s,
            cause="activation_outlier_growth",
            symptom="drift_up",
            severity="warning" if quick or hurt else "info",
            confidence=_confidence(s, growing),
            tensors=first,
            detected=proof_after(s, GROWTH_ROWS, symptoms) if s.signal == "amax_jump" else None,
            order="forward",
            summary=f"The largest value of {first[0]} grows away from the other layers since step "
            f"{s.onset:,}: {2**s.peak:,.0f} times its level by step {s.peak_step:,}.",
            evidence=[
                Evidence("log2 amax above its level", s.peak_step, s.peak, "below 1.8", s.peak_tensor),
                *(
                    Evidence("sqnr_db below its level", q.peak_step, q.peak, "within 1.2", q.peak_tensor)
                    for q in symptoms.near("sqnr_drop", s.onset, after=32)[:1]
                ),
            ],
            remedy=ATTENTION if attention_output(first[0]) else fitting(run, FP8, PLAIN),
            decisive_test="Log amax by channel of this layer for 20 steps: one channel carries "
            "all the growth.",
        )


def _jumped(s: Symptom, symptoms: Symptoms) -> float:
    """Octaves by which the tensor is larger since its first row. A trend is an average and passes a jump
    row by row, so for one that began as a jump it is the jump's.
    """
    jumps = [
        j.value
        for j in symptoms.near("amax_jump", s.onset, before=JUMP_ROWS)
        if s.signal == "amax_trend" and j.rank == s.rank and shared(s, j)
    ]
    return max([s.value, *jumps])


def _layers(s: Symptom) -> set[str]:
    return {t.rpartition("/")[0] for t in s.tensors if not t.endswith(("grad_output", "grad_input"))}


def _confidence(s: Symptom, growing: bool) -> float:
    if s.signal == "amax_trend":
        return 0.75
    return 0.88 if growing else 0.65


RULE = Rule(
    "FS401",
    "activation_outlier_growth",
    ("activation_outlier_growth",),
    (Need("amax", ("input", "weight")),),
    check,
    thresholds=(
        GROWN,
        FAST,
    ),
)
