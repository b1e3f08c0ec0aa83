"""FS301 gradient underflow.

What it checks
    Share of a gradient's non-zero elements that become exactly 0 in the cast.
Why it matters
    A gradient that rounds to zero is a weight that stops learning. Half of all linears dead cost 0.03 nats
    after 50 steps: the loss shows it when the budget is gone.
How it decides
    The underflow of a grad_output tensor rises far above its own level and stays (healthy gradients may
    underflow by 15 to 45 % all the time), or creeps up to it; the smallest gradients go first. In the first
    steps of a run, and while it warms up, nearly all of it must go for three steps in a row. A poisoned
    amax history, a lost or wrong scale, and an optimizer fault before it are other causes and exclude it.
    Where the run's preflight knows a defect of the software that zeroes gradients (NVFP4 on compute
    capability 12.x with Transformer Engine before 2.19), weight gradients that are zero are enough.
What excludes it
    A poisoned amax history, a lost or wrong scale, an optimizer fault before it; a single attention
    projection with a right scale (attention logit growth).
Known false positives
    A batch that is easy makes all gradients small for a step; it must last.
What to do
    Give the gradient a scale that follows it (per tensor or block), E5M2 for per-tensor recipes, a working
    loss scale for FP16, or keep the first and last layers in BF16.
Source
    Measured: E4M3 gradients without a scale lose 100 % in half of the linears while the global gradient norm
    falls by a quarter only.
"""

from __future__ import annotations

from collections.abc import Iterator

from floatscope_diagnostics.episodes import Symptom
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
)
from floatscope_diagnostics.thresholds import Threshold
from floatscope_diagnostics.zeroed_gradients import REMEDY as NVFP4_DEFECT
from floatscope_diagnostics.zeroed_gradients import zeroed_gradients

BACKWARD = ("/grad_output", "/grad_input", "/grad_weight")
FLUSHED = Threshold(
    "underflow_pct",
    "%",
    0.0,
    0.0,
    100.0,
    "Gradients of which less than this share rounds to zero, at the worst step, are left out; 0 leaves "
    "it to the limit of the tensor itself.",
)
GRAVE = Threshold(
    "critical_pct",
    "%",
    50.0,
    1.0,
    100.0,
    "With more than this share lost in two gradients or more it is critical.",
)
SURE_PCT = 50.0  # above it half of the signal is gone, whatever the cause
LOSS_SCALE_LOW = 8.0  # a loss scale below it means the scaler gave up, or there is none
FP8 = Remedy(
    "Give these gradients a scale that follows them, or more range. Go back to the last clean step: the "
    "weights behind them have not learned since.",
    {
        "transformer_engine": "Format.HYBRID (E5M2 gradients) with Float8CurrentScaling() or "
        "MXFP8BlockScaling(); keep first and last layers out of te.autocast",
        "torchao": 'Float8LinearConfig.from_recipe_name("rowwise_with_gw_hp") keeps wgrad in high precision',
        "megatron": "--fp8-format hybrid --fp8-recipe tensorwise --first-last-layers-bf16; FP16: "
        "--initial-loss-scale 65536 --min-loss-scale 1",
        "deepspeed": '"fp16": {"loss_scale": 0, "initial_scale_power": 16} scales dynamically; or "bf16"',
    },
)
PLAIN = Remedy(
    "Scale the loss so that these gradients stay above the format's smallest number, or train in BF16. Go "
    "back to the last clean step: the weights behind them have not learned since.",
    {
        "transformer_engine": "params_dtype=torch.bfloat16",
        "torchao": "torch.autocast(dtype=torch.bfloat16); torch.amp.GradScaler() for FP16",
        "megatron": "--bf16; FP16: --initial-loss-scale 65536 --min-loss-scale 1",
        "deepspeed": '"fp16": {"loss_scale": 0, "initial_scale_power": 16} scales dynamically; or "bf16"',
    },
)


def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """One finding per stretch of flushed gradients."""
    for s in symptoms.of("underflow", "underflow_trend", "underflow_always", "gradient_flushed"):
        gradients = tuple(t for t in s.tensors if t.endswith(BACKWARD))
        if not gradients or 2 * len(gradients) < len(s.tensors) or s.peak < FLUSHED.of(run):
            continue
        first = tuple(t for t in s.first if t in gradients) or gradients
        idle = [
            h
            for name in ("headroom_up", "scale_low")
            for h in symptoms.active(name, s.onset, slack=2)
            if set(h.tensors) & set(gradients)
        ]
        yield about(
            s,
            cause="gradient_underflow",
            symptom="underflow",
            severity="critical" if s.peak > GRAVE.of(run) and len(gradients) > 1 else "warning",
            confidence=_confidence(s, gradients, bool(idle)),
            tensors=first,
            order="backward",
            summary=f"{s.peak:.0f} % of the non-zero gradients of {s.peak_tensor or first[0]} round to zero"
            f"{f' ({len(gradients)} tensors)' if len(gradients) > 1 else ''}: the weights behind "
            "it stop learning.",
            evidence=[
                Evidence("underflow_pct", s.peak_step, s.peak, "near its own level", s.peak_tensor),
                *(
                    Evidence("zero_grad_pct", z.peak_step, z.peak, f"near {z.expected or 0:.1f}")
                    for z in symptoms.active("zero_grad_rise", s.onset, slack=4)[:1]
                ),
                *(
                    Evidence(
                        "bits of range the scale leaves unused",
                        h.peak_step,
                        h.peak,
                        "below 14",
                        h.peak_tensor,
                    )
                    for h in idle[:1]
                ),
            ],
            remedy=fitting(run, FP8, PLAIN),
            decisive_test="Run 50 steps with these gradients in BF16: the weights' grad_norm must rise.",
        )
    yield from _without_tensors(symptoms, window, run)
    known = zeroed_gradients(
        symptoms,
        window,
        run,
        remedy=NVFP4_DEFECT,
        decisive_test="Run 20 steps with stochastic rounding off: the linear layers' gradients are not 0.",
    )
    if known is not None:
        yield known


def _confidence(s: Symptom, gradients: tuple[str, ...], idle: bool) -> float:
    if len(gradients) == 1 and not idle:
        return 0.62  # one layer only, with a correct scale: the values have spread, see logit growth
    if s.signal not in ("underflow", "gradient_flushed"):
        return 0.85 if s.signal == "underflow_trend" else 0.7
    return 0.9 if idle or s.peak > SURE_PCT else 0.75


def _without_tensors(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """Only the run's share of zero gradients is logged: it creeps up while a loss scale is missing or
    tiny."""
    scale = window.last_scalars.get("loss_scale")
    if scale is None or scale > LOSS_SCALE_LOW or ("grad_output", "underflow_pct") in run.stats:
        return
    for z in symptoms.of("zero_grad_trend"):
        yield about(
            z,
            cause="gradient_underflow",
            symptom="underflow",
            severity="warning",
            confidence=0.7,
            order="backward",
            summary=f"The share of gradients that are exactly 0 creeps up to {z.peak:.0f} % at a "
            f"loss scale of {scale:g}.",
            evidence=[Evidence("zero_grad_pct", z.peak_step, z.peak, f"near {z.expected or 0:.0f}")],
            remedy=fitting(run, FP8, PLAIN),
            decisive_test="Turn dynamic loss scaling on for 50 steps: the share of zero gradients must fall.",
        )


RULE = Rule(
    "FS301",
    "gradient_underflow",
    ("gradient_underflow",),
    (Need("underflow_pct", ("grad_output",)), Need("zero_grad_pct")),
    check,
    thresholds=(
        FLUSHED,
        GRAVE,
    ),
)
