"""FS302 quantization drift.

What it checks
    Whether the casts lose more precision than their format must, everywhere at once, and whether the loss
    parts from a baseline on the same batches although nothing else happens.
Why it matters
    There is no event and no NaN: the run is simply worse, by an amount that noise hides for thousands of
    steps.
How it decides
    The signal-to-quantisation-noise ratio of nearly all inputs, weights and gradients drops in the same step
    and stays, while headroom and underflow do not move: rounding has changed (truncation instead of nearest,
    fewer mantissa bits). Or the paired loss difference to the baseline stays above what two healthy runs
    differ by (0.02 nats, or twice the noise of their pairs) by a test that may be read after every block of a
    run of any length, and no event explains it: no jump of loss, learning rate or update, no clipping, no
    underflow. That alone is a note below 0.08 nats. Not in a run that is all FP32: nothing is rounded there.
    A constant offset points to a biased forward, a gap that widens to an error that builds up in the state:
    weights that are not updated, sums that lose their low bits, moments. The other causes are then named with
    their weight, less of it where the log shows that their own sign is missing.
What excludes it
    Headroom, clipping or underflow that moved (their rules); updates that round away; only one or two
    tensors (scale state fault).
Known false positives
    Two runs from scratch part by chance while they leave a plateau; a baseline on other batches is no
    pair.
What to do
    Use round to nearest even; find the layer by switching layers to BF16 one after the other; block scaling.
    In BF16 and FP16 runs: FP32 for reductions, the attention's sums and the master weights.
Source
    Measured: truncating casts cost 6 dB in every tensor and a constant 0.0028 nats, weights without an FP32
    master a gap that widens; pairing resolves 1e-4 nats in 200 steps where the unpaired loss needs 3,000
    times more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from floatscope.protocol.names import split_tensor
from floatscope_diagnostics.detectors.paired_gap import SHAPES
from floatscope_diagnostics.episodes import Symptom
from floatscope_diagnostics.precision import runs_fp8
from floatscope_diagnostics.rule import (
    Alternative,
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

REMEDY = Remedy(
    "Restore round to nearest even in every cast (and stochastic rounding for FP4 gradients only); if the "
    "casts are right, keep the layers with the lowest SQNR in BF16 or use a block recipe.",
    {
        "transformer_engine": "Float8BlockScaling() or MXFP8BlockScaling(); DisableFP8Layer (debug "
        "features) to find the layer; MMParams(use_split_accumulator=True) for fprop",
        "torchao": 'Float8LinearConfig.from_recipe_name("rowwise_with_gw_hp"); use_fast_accum=False',
        "megatron": "--fp8-recipe blockwise; --first-last-layers-bf16; --accumulate-allreduce-grads-in-fp32",
        "deepspeed": "exclude the layer from the FP8 region",
    },
)
WIDE_REMEDY = Remedy(
    "Compute in FP32 what adds up many rounded numbers: gradient reduction and accumulation, the row sums of "
    "the attention, norms and the loss; keep FP32 master weights; change the attention kernel.",
    {
        "transformer_engine": "FusedAdam(master_weights=True); NVTE_FLASH_ATTN=0 or NVTE_FUSED_ATTN=0 to "
        "change the attention backend",
        "megatron": "--accumulate-allreduce-grads-in-fp32; --attention-softmax-in-fp32; --attention-backend",
        "deepspeed": '"bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "fp32"}',
        "pytorch": "FSDP MixedPrecision(reduce_dtype=torch.float32); parameters in float32 under autocast",
    },
)
# a gap alone proves no cause; healthy small runs ended up to 0.066 apart
WARN = Threshold(
    "gap_nats",
    "nats",
    0.08,
    0.02,
    10.0,
    "A loss so far above the baseline on the same batches is an alarm; a smaller gap is a note.",
)
LOST = Threshold(
    "sqnr_drop_db",
    "dB",
    0.0,
    0.0,
    60.0,
    "A common fall of SQNR that stays below this is left out; 0 leaves it to the limit of the tensors "
    "themselves.",
)
BEFORE_ROWS = 96  # how long before the gap an event can have caused it: gaps open slowly
EVENTS = (
    "loss_jump", "loss_shift", "loss_climb", "loss_nonfinite", "loss_constant", "loss_zero", "lr_jump",
    "lr_zero", "norm_jump", "norm_fall", "update_jump", "update_fall", "weights_jump", "gradients_step",
    "clipping", "clipping_grad", "near_limit", "scale_high", "scale_low", "scale_reset", "scale_nonfinite",
    "underflow", "zero_grad_rise", "zeros_appear", "unchanged", "grad_norm_zero", "amax_jump", "amax_trend",
    "rms_step", "nonfinite_forward", "nonfinite_grad", "nonfinite_weight", "nonfinite_weight_grad",
    "no_labels", "input_ids_out_of_range", "paired_break", "resumed", "loss_scale_falls",
)  # fmt: skip
"""What is an event of its own: a gap behind it is its consequence, and its own rule names it."""
CONFIDENCE = 0.65
CONSTANT: Mapping[str, float] = {"accumulation_precision": 0.12, "update_stagnation": 0.06}
WIDENING: Mapping[str, float] = {
    "update_stagnation": 0.24,
    "accumulation_precision": 0.2,
    "optimizer_state_fault": 0.12,
}
UNCLEAR: Mapping[str, float] = {"accumulation_precision": 0.15, "update_stagnation": 0.15}
"""Weights of the other causes by shape of the gap. Judgement from the measured signatures: truncation gave
offsets and never a slope, missing FP32 masters a slope (Mann-Kendall tau 0.85)."""
DENIED_BY: Mapping[str, tuple[tuple[Need, str], ...]] = {
    "update_stagnation": (
        (Need("unchanged_pct", ("weight",)), "unchanged_pct is logged and no weight stands still"),
    ),
    "optimizer_state_fault": (
        (Need("update_ratio", ("weight",)), "update_ratio is logged and moves in no layer"),
    ),
}
DENIED_SHARE = 0.25  # what is left of a cause's weight when its own sign is logged and missing
WHY: Mapping[str, str] = {
    "accumulation_precision": "needs a gap that grows with the number of ranks, micro-batches or K",
    "update_stagnation": "weights that stand still are not in this log",
    "optimizer_state_fault": "the size of the updates is not in this log",
}


def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """Findings from the tensors and from the paired loss."""
    gaps = symptoms.of("paired_gap")
    drops = [s for s in symptoms.of("sqnr_drop_all") if s.peak >= LOST.of(run)]
    for s in drops:
        near = [g for g in gaps if s.onset - 16 <= g.onset]
        yield about(
            s,
            cause="quantization_drift",
            symptom="drift_up",
            severity="warning",
            confidence=0.92 if not near else 0.96,
            tensors=(),
            order=None,
            summary=f"{_casts(s)} lose precision at once since step {s.onset:,}: {s.peak:.1f} dB less in "
            f"{len(s.tensors)} tensors with unchanged range. The rounding has changed.",
            evidence=[
                Evidence("sqnr_db below its level", s.peak_step, s.peak, "within 1", s.peak_tensor),
                *(
                    Evidence("loss minus baseline", g.peak_step, g.peak, f"near {g.expected or 0:.4f}")
                    for g in near[:1]
                ),
            ],
            remedy=REMEDY,
            decisive_test="Cast a tensor whose values lie between two codes and look at the signs of the "
            "errors: all toward zero proves truncation.",
        )
    if rounds(run):
        for g in gaps:
            if not any(d.onset <= (g.detected or g.onset) for d in drops) and not explained(g, symptoms):
                yield _gap(g, run)


def _casts(s: Symptom) -> str:
    """Which casts: all, or those of one class of tensors."""
    roles = {split_tensor(t)[1] for t in s.tensors}
    return f"All casts of {roles.pop()} tensors" if len(roles) == 1 else "All casts"


def _gap(g: Symptom, run: RunFacts) -> Finding:
    mean = g.extra.get("mean", g.peak)
    shape = SHAPES[int(g.extra.get("shape", 0.0))]
    others = alternatives(shape, run)
    widening = shape == "widening"
    kind = {
        "constant": ", a constant offset",
        "widening": ", and the gap widens",
        "closing": ", and the gap closes",
    }.get(shape, "")
    band = f"0 up to {g.extra.get('margin', 0.0):.2g}"
    evidence = [Evidence("loss minus baseline", g.peak_step, mean, band)]
    if "change" in g.extra:
        least, most = g.extra["change_low"], g.extra["change_high"]
        evidence.append(
            Evidence(
                f"change of the gap since step {g.onset:,}",
                g.last,
                g.extra["change"],
                f"0; its 95 % band is {least:.2g} to {most:.2g}",
            )
        )
    sure = min(CONFIDENCE, 1.0 - sum(a.confidence for a in others)) if widening else CONFIDENCE
    low, high = g.extra.get("low", mean), g.extra.get("high", mean)
    return about(
        g,
        cause="quantization_drift",
        symptom="drift_up",
        severity="warning" if mean >= WARN.of(run) else "info",
        confidence=round(sure, 2),
        onset_last=g.detected,
        summary=f"The loss is {mean:.3g} nats [{low:.3g}, {high:.3g}] above the baseline on the same "
        f"batches since about step {g.onset:,}{kind}, without any other event"
        f"{'' if mean >= WARN.of(run) else '; watch it'}.",
        evidence=evidence,
        remedy=REMEDY if uses_fp8(run) else WIDE_REMEDY,
        decisive_test=_test(run, widening=widening),
        alternatives=others,
    )


def _test(run: RunFacts, *, widening: bool) -> str:
    if widening:
        return (
            "Log unchanged_pct and update_ratio of the weights for 50 steps, and repeat 200 steps from one "
            "checkpoint with FP32 master weights and FP32 reduction: a gap that stops growing was the state."
        )
    if uses_fp8(run):
        return (
            "Switch all FP8 layers to BF16 for 50 steps: if the gap closes it is precision, else look "
            "at the data and the optimizer."
        )
    return (
        "Repeat 50 steps from one checkpoint in FP32 on the same batches: if the gap closes it is precision, "
        "else look at the data and the optimizer."
    )


def rounds(run: RunFacts) -> bool:
    """Whether any cast can lose precision: not in a run that is declared FP32 in every tensor."""
    formats = set(run.formats.values())
    if formats - {"fp32"}:
        return True
    return not formats and run.recipe_name != "fp32"


def uses_fp8(run: RunFacts) -> bool:
    """Whether the run casts to 8 bits or fewer; a log that declares nothing is taken for an FP8 run."""
    return runs_fp8(run) or not (run.formats or run.recipe_name)


def explained(g: Symptom, symptoms: Symptoms) -> bool:
    """Whether an event came before the gap, or while it opened."""
    first = g.onset - BEFORE_ROWS * symptoms.stride
    proven = g.onset if g.detected is None else g.detected
    return any(first <= e.last and e.onset <= proven for e in symptoms.of(*EVENTS))


def alternatives(shape: str, run: RunFacts) -> tuple[Alternative, ...]:
    """The other causes of such a gap with their weights, lower where their own sign is logged and missing."""
    weights = {"constant": CONSTANT, "widening": WIDENING}.get(shape, UNCLEAR)
    out = []
    for cause, weight in weights.items():
        denied = [why for need, why in DENIED_BY.get(cause, ()) if run.saw(need)]
        share = weight * DENIED_SHARE if denied else weight
        out.append(Alternative(cause, round(share, 2), denied[0] if denied else WHY[cause]))
    return tuple(sorted(out, key=lambda a: -a.confidence))


RULE = Rule(
    "FS302",
    "quantization_drift",
    ("quantization_drift",),
    (Need("sqnr_db", ("input", "weight", "grad_output")),),
    check,
    needs_baseline=True,
    thresholds=(
        WARN,
        LOST,
    ),
)
