"""FS203 scale state fault.

What it checks
    Whether the stored scale is the one the recipe implies: finite, not reset at a resume, updated at every
    step, made from the whole tensor; and whether the quantised copy of a weight is fresh.
Why it matters
    A wrong scale clips or flushes a tensor for as long as it lasts, and the loss often shows nothing for
    thousands of steps.
How it decides
    The shadow scale is recomputed from the logged amaxes with the declared recipe; a deviation for two
    updates is a violation, no statistics involved. Kinds: nonfinite_scale (NaN, Inf, 0), degenerate_amax (the
    same right after an amax of 0), lost_at_resume (nearly all scales are exactly 1 at once), frozen (it did
    not move when it should), reduction_group (it moved away and is too high by a constant factor, or clips
    under current scaling), recompute (it follows half the declared history), stale_fp8_copy (a weight loses
    precision while its scale is right).
What excludes it
    A scale inside the interval that the logged amaxes, the margin and the history allow; on several ranks
    a scale that another rank's larger amax explains; values that are merely large, imprecise or masked.
Known false positives
    A recipe that is changed while training but not logged; amaxes logged of another copy of the tensor
    than the one that is cast.
What to do
    Restore the FP8 state with the checkpoint, or recalibrate; fix the amax reduction group; or use a recipe
    without state.
Source
    Transformer Engine common/recipe/delayed_scaling.cu; public reports TE#982, TE#2044, TE#1190, Megatron-
    LM#442, torchtitan#3109.
"""

from __future__ import annotations

from collections.abc import Iterator

from floatscope_diagnostics.episodes import Symptom
from floatscope_diagnostics.rule import (
    Evidence,
    Finding,
    Need,
    Remedy,
    Rule,
    RunFacts,
    Severity,
    Symptoms,
    Window,
    about,
)

HALF_SHARE = 0.7  # of the off tensor-steps that match half the history
UNSCALED_LOG2 = 8.0  # a scale that merely stands still does not fall this far behind a gradient
BACKWARD = ("/grad_output", "/grad_input")
STALE_COPY_MAX_SHARE = 0.5  # of the weights; all at once is a change of rounding, not a stale copy
SETTINGS = {
    "transformer_engine": "load _extra_state with the checkpoint, or recalibrate with "
    "te.autocast(enabled=False, calibrating=True); DelayedScaling(reduce_amax=True); or "
    "Float8CurrentScaling()",
    "torchao": 'dynamic scaling keeps no state: Float8LinearConfig.from_recipe_name("tensorwise")',
    "megatron": "--fp8-recipe tensorwise (or blockwise, mxfp8); with delayed reduce amax over "
    "the TP x CP group",
    "deepspeed": "save and load the modules' extra state with the checkpoint",
}
ADVICE = {
    "nonfinite_scale": "Find what wrote the scale: an amax of 0 or Inf without a floor, or a bad checkpoint.",
    "degenerate_amax": "Put a floor under the amax: an idle tensor (amax 0) must keep its old "
    "scale, not get an infinite one.",
    "lost_at_resume": "Load the FP8 state with the checkpoint, or run a few calibration steps "
    "before the first update.",
    "frozen": "Find why the update does not run for these tensors: stale pointers after a reallocation, a "
    "module outside the autocast region, or an Inf in the amax history.",
    "reduction_group": "The amax must cover the whole tensor: reduce it over all its shards (TP, CP, and DP "
    "with sequence parallel).",
    "recompute": "The amax history advances more than once a step: disable the update in the recomputed "
    "forward.",
    "stale_fp8_copy": "Refresh the quantised weights after every optimizer step; check "
    "is_first_microbatch and weight caching.",
}


def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """One finding for each kind of violation."""
    for s in symptoms.of("scale_nonfinite"):
        idle = [z for z in symptoms.near("amax_zero", s.onset, before=2) if set(z.tensors) & set(s.tensors)]
        kind: str | None = "degenerate_amax" if idle else "nonfinite_scale"
        onset = min([s.onset, *(z.onset for z in idle)])
        yield _finding(s, kind, 0.97, "is NaN, infinite or not positive", "critical", symptoms, onset=onset)
    for s in symptoms.of("scale_reset"):
        yield _finding(
            s, "lost_at_resume", 0.97, "is exactly 1, as in nearly all tensors at once,", "critical", symptoms
        )
    for s in symptoms.of("scale_high"):
        kind = _kind_of_high(s, symptoms)
        what = "is higher than its amaxes allow"
        yield _finding(
            s, kind, 0.95, what, "critical" if s.extra.get("spread", 0) > 0.5 else "warning", symptoms
        )
    alone = run.world_size == 1 or run.recipe.get("reduce_amax") is False
    for s in symptoms.of("scale_low"):
        if alone or s.rank < 0:  # below 0: judged with the amaxes of all ranks
            kind = "recompute" if _half(s) else None if _moved(s) else "frozen"
            sure = 0.55 if _unscaled_gradients(s, symptoms) else 0.9
            yield _finding(s, kind, sure, "is lower than its amaxes explain", "warning", symptoms)
    for s in symptoms.of("scales_part"):
        what = "differs between ranks that had the same one"
        yield _finding(s, "reduction_group", 0.93, what, "warning", symptoms)
    yield from _stale_copies(symptoms, run)


def _unscaled_gradients(s: Symptom, symptoms: Symptoms) -> bool:
    """Gradients only, many bits too low, and they flush: they have no scale of their own (gradient
    underflow)."""
    if s.peak < UNSCALED_LOG2 or not all(t.endswith(BACKWARD) for t in s.tensors):
        return False
    return any(
        set(u.tensors) & set(s.tensors) for u in symptoms.near("underflow", s.onset, before=2, after=3)
    )


def _written(s: Symptom) -> int | None:
    """The step after the scale was written for the last time: a frozen scale shows only when it should have
    moved."""
    written = s.extra.get("written", -1.0)
    return int(written) + 1 if 0 <= written < s.onset else None


def _half(s: Symptom) -> bool:
    count = s.extra.get("total_count", 0.0)
    return count > 0 and s.extra.get("total_half", 0.0) >= HALF_SHARE * count


def _moved(s: Symptom) -> bool:
    """The scale went away from the shadow by itself, in most of the off tensor-steps; else it stood still."""
    count = s.extra.get("total_count", 0.0)
    return count > 0 and s.extra.get("total_moved", 0.0) > 0.5 * count


def _kind_of_high(s: Symptom, symptoms: Symptoms) -> str:
    if [z for z in symptoms.near("amax_zero", s.onset, before=2) if set(z.tensors) & set(s.tensors)]:
        return "degenerate_amax"
    if _half(s):
        return "recompute"
    return "reduction_group" if _moved(s) else "frozen"


def _stale_copies(symptoms: Symptoms, run: RunFacts) -> Iterator[Finding]:
    for s in symptoms.of("sqnr_drop"):
        weights = tuple(t for t in s.tensors if t.endswith("/weight"))
        total = sum(1 for t in run.formats if t.endswith("/weight"))
        others = [t for t in s.tensors if t.endswith("/input")]
        clipped = [c for n in ("clipping", "amax_jump") for c in symptoms.near(n, s.onset, before=2, after=1)]
        if any(set(c.tensors) & set(weights) for c in clipped):
            continue  # the weight itself has changed
        if not weights or others or len(weights) > STALE_COPY_MAX_SHARE * total:
            continue
        first = tuple(t for t in s.first if t in weights) or weights
        yield about(
            s,
            cause="scale_state_fault",
            kind="stale_fp8_copy",
            symptom="scale_anomaly",
            severity="warning",
            confidence=0.85,
            tensors=first,
            order="forward",
            summary=f"The quantised copy of {first[0]} is no longer refreshed since step {s.onset:,}: its "
            "error grows while its scale stays right.",
            evidence=[Evidence("sqnr_db below its level", s.peak_step, s.peak, "within 0.3", s.peak_tensor)],
            remedy=Remedy(ADVICE["stale_fp8_copy"], SETTINGS),
            decisive_test="Compare the dequantised copy with the master weight: the difference "
            "grows with every update.",
        )


def _finding(
    s: Symptom,
    kind: str | None,
    confidence: float,
    what: str,
    severity: Severity,
    symptoms: Symptoms,
    *,
    onset: int | None = None,
) -> Finding:
    hurt = [
        x
        for name in ("clipping", "clipping_grad", "underflow")
        for x in symptoms.active(name, s.onset, slack=2)
        if x.rank == s.rank
    ]
    return about(
        s,
        cause="scale_state_fault",
        kind=kind,
        symptom="scale_anomaly",
        severity="critical" if hurt else severity,
        confidence=confidence,
        onset=onset,
        onset_first=_written(s) if kind == "frozen" else None,
        order="backward"
        if s.tensor is not None and s.tensor.endswith(("grad_output", "grad_input"))
        else "forward",
        summary=f"The scale of {s.tensor} {what} since step {s.onset:,}"
        f"{f' ({len(s.tensors)} tensors)' if len(s.tensors) > 1 else ''}.",
        evidence=[
            Evidence(
                "scale against the shadow scale, log2", s.peak_step, s.peak, "0", s.peak_tensor or s.tensor
            ),
            *(
                Evidence(
                    "underflow_pct" if h.signal == "underflow" else "overflow_pct",
                    h.peak_step,
                    h.peak,
                    "near its level",
                    h.peak_tensor,
                )
                for h in hurt[:2]
            ),
        ],
        remedy=Remedy(ADVICE.get(kind or "", ADVICE["frozen"]), SETTINGS),
        decisive_test="Print the module's scale and amax history before and after one update: the recipe's "
        "formula must give the scale.",
    )


RULE = Rule(
    "FS203",
    "scale_state_fault",
    ("scale_state_fault",),
    (Need("scale", ("input", "weight", "grad_output")), Need("amax", ("input", "weight", "grad_output"))),
    check,
)
