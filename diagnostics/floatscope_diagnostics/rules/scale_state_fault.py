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

import math
from collections.abc import Iterator
from dataclasses import replace

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
STATELESS = "Float8CurrentScaling() keeps no state"
NO_STATE = 'dynamic scaling keeps no state: Float8LinearConfig.from_recipe_name("tensorwise")'
MEGATRON_STATELESS = "--fp8-recipe tensorwise (or blockwise, mxfp8)"
REWRITE = (
    "module.fp8_meta['scaling_fwd'] (gradients: 'scaling_bwd'): .scale.fill_(1) and .amax_history.zero_(), "
    "then some steps under te.autocast(enabled=False, calibrating=True)"
)
REMEDIES = {
    "nonfinite_scale": Remedy(
        "Find what wrote the scale: an amax of 0 or Inf without a floor, or a bad checkpoint.",
        {
            "transformer_engine": f"{REWRITE}; {STATELESS}",
            "torchao": NO_STATE,
            "megatron": f"load an older checkpoint; {MEGATRON_STATELESS}",
            "deepspeed": "load an older checkpoint with the modules' extra state",
        },
    ),
    "degenerate_amax": Remedy(
        "Put a floor under the amax: an idle tensor (amax 0) must keep its old scale, not get an infinite "
        "one.",
        {
            "transformer_engine": "its own update keeps the scale at an amax of 0: look for a scaling_factor_"
            f"compute_algo or code that writes scales; {STATELESS}",
            "torchao": f"casts clamp the amax from below; {NO_STATE}",
            "megatron": MEGATRON_STATELESS,
            "deepspeed": "wrap the forward in te.autocast with Float8CurrentScaling()",
        },
    ),
    "lost_at_resume": Remedy(
        "Load the FP8 state with the checkpoint, or run a few calibration steps before the first update.",
        {
            "transformer_engine": "load _extra_state with the checkpoint, or recalibrate with "
            f"te.autocast(enabled=False, calibrating=True); {STATELESS}",
            "torchao": NO_STATE,
            "megatron": f"load the modules' _extra_state with the checkpoint; {MEGATRON_STATELESS}",
            "deepspeed": "save and load the modules' extra state with the checkpoint",
        },
    ),
    "frozen": Remedy(
        "Find why the update does not run for these tensors: stale pointers after a reallocation, a module "
        "outside the autocast region, or an Inf in the amax history.",
        {
            "transformer_engine": "every forward inside te.autocast(enabled=True), its exit reached in every "
            f"step; upgrade (issues 2044, 2063); {STATELESS}",
            "torchao": NO_STATE,
            "megatron": MEGATRON_STATELESS,
            "deepspeed": "enter te.autocast in every forward, not once around the loop",
        },
    ),
    "reduction_group": Remedy(
        "The amax must cover the whole tensor: reduce it over all its shards (TP, CP, and DP with sequence "
        "parallel).",
        {
            "transformer_engine": "DelayedScaling(reduce_amax=True) and te.autocast(amax_reduction_group=the "
            "group of TP x DP (x CP)); older releases: fp8_group",
            "torchao": "Float8ColwiseParallel, Float8RowwiseParallel and PrepareFloat8ModuleInput "
            "(torchao.float8.float8_tensor_parallel) cast whole tensors",
            "megatron": "without --tp-only-amax-red the amax is reduced over TP x DP x CP",
            "deepspeed": "te.autocast(amax_reduction_group=the group of all ranks that share the tensor)",
        },
    ),
    "recompute": Remedy(
        "The amax history advances more than once a step: disable the update in the recomputed forward.",
        {
            "transformer_engine": "te.checkpoint (transformer_engine.pytorch.checkpoint) instead of "
            f"torch.utils.checkpoint; {STATELESS}",
            "torchao": NO_STATE,
            "megatron": f"without --recompute-granularity to confirm it; {MEGATRON_STATELESS}",
            "deepspeed": "checkpoint the TE modules with te.checkpoint, not deepspeed.checkpointing",
        },
    ),
    "stale_fp8_copy": Remedy(
        "Refresh the quantised weights after every optimizer step.",
        {
            "transformer_engine": "is_first_microbatch=True in the first micro-batch of every step, or None "
            "(no caching of the quantised weight)",
            "torchao": "precompute_float8_dynamic_scale_for_fsdp(model) after every optimizer.step()",
            "megatron": "without --fp8-param-gather to confirm it",
            "deepspeed": "is_first_microbatch=None in the TE modules",
        },
    ),
}
TESTS = {
    "": "Print the module's scale and amax history before and after one update: the recipe's formula must "
    "give the scale.",
    "nonfinite_scale": "Print the module's scale and amax history at the step before: the one that is not "
    "finite there is the source.",
    "lost_at_resume": "Print the module's scale and amax history right after loading: 1 and 0 prove it.",
    "reduction_group": "Print this tensor's amax and scale on every rank in one step: the scale must come "
    "from the largest amax of all shards.",
    "recompute": "Run 50 steps without activation checkpointing: the scale follows its amaxes again.",
}


def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """One finding for each kind of violation."""
    for s in symptoms.of("scale_nonfinite"):
        idle = [z for z in symptoms.near("amax_zero", s.onset, before=2) if set(z.tensors) & set(s.tensors)]
        kind: str | None = "degenerate_amax" if idle else "nonfinite_scale"
        onset = min([s.onset, *(z.onset for z in idle)])
        yield _finding(s, kind, 0.97, _not_a_scale(s.value), "critical", symptoms, onset=onset)
    for s in symptoms.of("scale_reset"):
        if _from_scratch(s, symptoms, run):
            continue
        yield _finding(
            s, "lost_at_resume", 0.97, "is exactly 1, as in nearly all tensors at once,", "critical", symptoms
        )
    alone = run.world_size == 1 or run.recipe.get("reduce_amax") is False
    for s in symptoms.of("scale_high"):
        kind = _kind_of_high(s, symptoms)
        severity: Severity = "critical" if s.extra.get("spread", 0) > 0.5 else "warning"
        low = _too_low_before(s, symptoms) if kind == "frozen" and alone else None
        what = "is higher than its amaxes allow"
        if low is not None:
            what = f"is lower than its amaxes explain since step {low.onset:,} and higher than they allow"
        yield _finding(s, kind, 0.95, what, severity, symptoms, before=low)
    for s in symptoms.of("scale_low"):
        if alone or s.rank < 0:  # below 0: judged with the amaxes of all ranks
            kind = "recompute" if _half(s) else None if _moved(s) else "frozen"
            sure = 0.55 if _unscaled_gradients(s, symptoms) else 0.9
            yield _finding(s, kind, sure, "is lower than its amaxes explain", "warning", symptoms)
    for s in symptoms.of("scales_part"):
        what = "differs between ranks that had the same one"
        yield _finding(s, "reduction_group", 0.93, what, "warning", symptoms)
    if run.recipe.get("reduce_amax") is not False:
        yield from _parted_hashes(symptoms)
    yield from _stale_copies(symptoms, run)


def _parted_hashes(symptoms: Symptoms) -> Iterator[Finding]:
    """Where no single scale is seen to differ, a hash of them all may."""
    parts = symptoms.of("scales_part")
    for s in symptoms.of("scale_hashes_part"):
        if any(p.segment == s.segment and s.onset <= p.onset <= s.last for p in parts):
            continue
        rank = int(s.extra.get("rank", -1.0))
        found = about(
            s,
            cause="scale_state_fault",
            kind="reduction_group",
            symptom="scale_anomaly",
            severity="warning",
            confidence=0.9,
            summary=f"The FP8 scales of {f'rank {rank}' if rank >= 0 else 'the ranks'} differ from those of "
            f"ranks that had the same ones, since step {s.onset:,}.",
            evidence=[Evidence("ranks whose scale_hash differs", s.peak_step, s.peak, "0")],
            remedy=REMEDIES["reduction_group"],
            decisive_test=TESTS["reduction_group"],
        )
        yield replace(found, rank=rank) if rank >= 0 else found


def _not_a_scale(size: float) -> str:
    """size: of the scale, without its sign."""
    return "is NaN" if math.isnan(size) else "is infinite" if math.isinf(size) else "is not positive"


def _from_scratch(s: Symptom, symptoms: Symptoms, run: RunFacts) -> bool:
    """A log that begins with all scales at 1 and whose first step is one stride from 0, as when steps count
    tokens: the first step of a run. Whether it is shows at its second row.
    """
    if s.onset != run.first_step or symptoms.active("resumed", s.onset, slack=0):
        return False
    return s.onset <= symptoms.stride or run.first_step == run.last_step


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


def _too_low_before(high: Symptom, symptoms: Symptoms) -> Symptom | None:
    """The same standstill from its other side: a scale that was not written between the two."""
    written = high.extra.get("written", -1.0)
    for low in symptoms.of("scale_low"):
        same = (low.rank, low.segment) == (high.rank, high.segment) and low.tensor == high.tensor
        if same and 0 <= written < low.onset < high.onset and not _half(low) and not _moved(low):
            return low
    return None


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
            remedy=REMEDIES["stale_fp8_copy"],
            decisive_test="Compare the dequantised copy with the master weight: the difference "
            "grows with every update.",
        )


def _off(s: Symptom) -> Evidence:
    if s.signal == "scale_nonfinite":
        return Evidence("scale", s.onset, s.value, "finite and above 0", s.tensor)
    shadow = "scale against the shadow scale, log2"
    peak = -s.peak if s.signal == "scale_low" else s.peak
    return Evidence(shadow, s.peak_step, peak, "0", s.peak_tensor or s.tensor)


def _finding(
    s: Symptom,
    kind: str | None,
    confidence: float,
    what: str,
    severity: Severity,
    symptoms: Symptoms,
    *,
    onset: int | None = None,
    before: Symptom | None = None,
) -> Finding:
    """before: a sign of the same fault that came first; the onset is its."""
    lead = before or s
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
        onset=onset if before is None else before.onset,
        detected=None if before is None else before.detected,
        onset_first=_written(lead) if kind == "frozen" else None,
        order="backward"
        if s.tensor is not None and s.tensor.endswith(("grad_output", "grad_input"))
        else "forward",
        summary=f"The scale of {s.tensor} {what} {'since' if s.open or s.rows > 1 else 'at'} step {s.onset:,}"
        f"{f' ({len(s.tensors)} tensors)' if len(s.tensors) > 1 else ''}.",
        evidence=[
            *([] if before is None else [_off(before)]),
            _off(s),
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
        remedy=REMEDIES[kind or "frozen"],
        decisive_test=TESTS.get(kind or "", TESTS[""]),
    )


RULE = Rule(
    "FS203",
    "scale_state_fault",
    ("scale_state_fault",),
    (Need("scale", ("input", "weight", "grad_output")), Need("amax", ("input", "weight", "grad_output"))),
    check,
)
