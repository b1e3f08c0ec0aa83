"""FS203 scale state fault.

What it checks
    Whether the stored scale is the one the recipe implies: finite, not reset at a resume, updated, made from
    the whole tensor.
Why it matters
    A wrong scale clips or flushes a tensor for as long as it lasts, and the loss often shows nothing for
    thousands of steps.
How it decides
    The shadow scale is recomputed from the logged amaxes with the declared recipe; a deviation for two
    updates is a violation, no statistics involved. Kinds: nonfinite_scale (NaN, Inf, 0), lost_at_resume
    (nearly all scales exactly 1 at once), frozen (unchanged while the shadow moves), reduction_group (too
    high by a constant factor), recompute (the window is too short).
What to do
    Restore the FP8 state with the checkpoint, or recalibrate; fix the amax reduction group; or use a recipe
    without state.
Source
    Transformer Engine common/recipe/delayed_scaling.cu; reports TE#982, TE#2044, TE#1190, Megatron-LM#442,
    torchtitan#3109.
"""

from __future__ import annotations

from collections.abc import Iterator

from floatscope_diagnostics.episodes import Symptom
from floatscope_diagnostics.rule import Evidence, Finding, Need, Remedy, Rule, RunFacts, Symptoms, Window

FROZEN_SHARE = 0.9  # of the off rows in which the scale did not move
_CONSEQUENCES = frozenset(
    {
        "undetermined", "stale_scale_saturation", "amax_history_poisoning", "invalid_input",
        "gradient_underflow",
        "quantization_drift", "bad_batch", "op_kernel_fault", "masked_nonfinite", "activation_overflow",
        "update_stagnation", "data_shift", "lr_divergence", "optimizer_state_fault", "rank_divergence",
    }
)  # fmt: skip
_SETTINGS = {
    "transformer_engine": "load _extra_state with the checkpoint, or recalibrate with "
    "te.autocast(enabled=False, "
    "calibrating=True); DelayedScaling(reduce_amax=True); or Float8CurrentScaling()",
    "torchao": "dynamic scaling keeps no state: convert_to_float8_training(m, "
    "config=Float8LinearConfig.from_recipe_name("
    '"tensorwise"))',
    "megatron": "--fp8-recipe tensorwise (or blockwise, mxfp8); with delayed keep the amax group at TP x CP",
    "deepspeed": "save and load the module's extra state with the checkpoint",
}


def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """One finding for each kind of violation."""
    for s in symptoms.of("scale_nonfinite"):
        yield _finding(s, symptoms, "nonfinite_scale", 0.97, "is NaN, infinite or not positive", "critical")
    for s in symptoms.of("scale_reset"):
        yield _finding(
            s, symptoms, "lost_at_resume", 0.97, "is exactly 1 in nearly all tensors at once", "critical"
        )
    for s in symptoms.of("scale_high"):
        if s.rows >= 2 or not s.open:
            kind = "frozen" if s.extra.get("frozen", 0.0) > 0 else "reduction_group"
            yield _finding(s, symptoms, kind, 0.9, "is higher than the amax history allows", "warning")
    for s in symptoms.of("scale_low"):
        if run.world_size == 1 and s.rows >= 2:
            yield _finding(s, symptoms, "frozen", 0.9, "is lower than the amax history explains", "warning")


def _finding(
    s: Symptom, symptoms: Symptoms, kind: str, confidence: float, what: str, severity: str
) -> Finding:
    return Finding(
        cause="scale_state_fault",
        kind=kind,
        symptom="scale_anomaly",
        severity="critical" if severity == "critical" else "warning",
        confidence=confidence,
        onset=s.onset,
        detected=s.onset if s.detected is None else s.detected,
        resolved=None if s.open else s.last + 1,
        last=None if s.open else s.last,
        rank=s.rank,
        segment=s.segment,
        tensors=s.first,
        affected=len(s.tensors),
        order="forward",
        explains=_CONSEQUENCES,
        summary=f"The scale of {s.tensor} {what} since step {s.onset:,}.",
        evidence=(
            Evidence(
                "scale against the shadow scale, log2", s.peak_step, s.peak, "0", s.peak_tensor or s.tensor
            ),
        ),
        remedy=Remedy("Restore the FP8 scale state or use a recipe without state.", _SETTINGS),
        decisive_test="Print the module's scale and amax_history before and after one update: "
        "the update rule must give the scale.",
    )


RULE = Rule(
    "FS203",
    "scale_state_fault",
    ("scale_state_fault",),
    (Need("scale", ("input", "weight", "grad_output")), Need("amax", ("input", "weight", "grad_output"))),
    check,
)
