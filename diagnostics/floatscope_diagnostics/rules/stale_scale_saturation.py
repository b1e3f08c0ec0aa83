"""FS201 stale scale saturation.

What it checks
    Values clipped at the format's maximum because the scale still comes from smaller, older amaxes.
Why it matters
    A saturating cast hides the damage: the loss may not move at all, or jump for one step; a cast that does
    not saturate turns it into NaN in the same step.
How it decides
    A tensor clips far more than it ever did (share of clipped elements, or amax * scale above the maximum)
    while its amax jumped in the same step and its scale was exactly the one the recipe gives. Clipping that
    lasts three steps with a correct scale is the chronic form. Where a quarter of an activation clips in the
    step in which it leapt, that is found from the third logged step on and while a run warms up. A wrong
    scale, an optimizer jump before it, and an outlier that leaves underflow behind are other faults and
    exclude it.
What excludes it
    A scale that is not the one the recipe gives; an optimizer that moved first; an outlier that leaves an
    idle scale behind (amax history poisoning); harm that goes on after the scale has followed (operation
    fault); a weight that leaps further than any update (corrupted weight).
Known false positives
    Under most_recent a few outliers clip in every second step of a healthy run; only a share far beyond
    the tensor's own counts.
What to do
    Use a recipe without history, or a longer history, or a margin of 1 to 3 bits.
Source
    Measured: amax x16 in one step clips 70 % of the tensor, the scale follows one step later, the loss moves
    by less than 0.01 nats in most layers and by 1.7 in a critical one. Margin 3 removed all clipping at x4 a
    step.
"""

from __future__ import annotations

from collections.abc import Iterator

from floatscope_diagnostics.episodes import Symptom
from floatscope_diagnostics.placing import bad_values, effect_outlasts, whole_tensor
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
    shared,
)
from floatscope_diagnostics.thresholds import Threshold

AT_LEAP = "clipped_at_leap"
CHRONIC = Threshold(
    "chronic_rows",
    "logged steps",
    3.0,
    3.0,
    10000.0,
    "So many logged steps with clipping are a finding without a jump of amax, and critical.",
)
CLIPPED = Threshold(
    "overflow_pct",
    "%",
    0.0,
    0.0,
    100.0,
    "Clipping of which the worst step stays below this share of the tensor is left out, unless NaN "
    "follows; 0 leaves it to the limit of the tensor itself.",
)
LEAP_LOG2 = 3.0
MASS_PCT = 8.0  # so much of a tensor clips, and NaN behind it in the same step: the cast does not saturate
SPIKE_CONFIDENCE = 0.3  # kept as the lesser hypothesis beside a poisoned history
REMEDY = Remedy(
    "Let the scale follow the tensor: current or block scaling for this layer, or a margin of 1 to 3 bits "
    "and a long amax history with the maximum. A run whose casts do not saturate must go back to the last "
    "clean step.",
    {
        "transformer_engine": "Float8CurrentScaling() or Float8BlockScaling(); with delayed: "
        "DelayedScaling(margin=2, "
        'amax_history_len=1024, amax_compute_algo="max")',
        "torchao": 'Float8LinearConfig.from_recipe_name("tensorwise") scales from the current tensor',
        "megatron": "--fp8-recipe tensorwise (or blockwise, mxfp8); with delayed: --fp8-margin 2 "
        "--fp8-amax-history-len 1024 --fp8-amax-compute-algo max",
        "deepspeed": "wrap the forward in te.autocast with Float8CurrentScaling()",
    },
)


def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """One finding per stretch of clipping that the recipe's own delay explains."""
    chronic = CHRONIC.of(run)
    for clip in symptoms.of("clipping", "clipping_grad", AT_LEAP):
        jumps = [
            j
            for name in ("amax_jump", "amax_leap")
            for j in symptoms.near(name, clip.onset, before=1)
            if shared(clip, j) and j.rank == clip.rank
        ]
        if _wrong_scale(clip, symptoms) or _optimizer_first(clip, symptoms):
            continue
        nan = [n for n in symptoms.near("nonfinite_forward", clip.onset, after=1) if n.rank == clip.rank]
        unknown = ("input", "overflow_pct") not in run.stats and (
            "grad_output",
            "overflow_pct",
        ) not in run.stats
        if not nan and not unknown and clip.peak < CLIPPED.of(run):
            continue
        if unknown and clip.rows == 1 and not nan and all(j.rows == 1 and not j.open for j in jumps):
            continue  # the share that clips is not logged: a few outliers of one step look the same
        if (
            not jumps
            and clip.signal != AT_LEAP
            and clip.rows < chronic
            and not (nan and clip.peak > MASS_PCT)
        ):
            continue
        if jumps and effect_outlasts(clip, symptoms):
            continue  # the scale has followed and the harm goes on: see operation fault
        whole = any(whole_tensor(j, symptoms) for j in jumps)
        if (
            all(t.endswith("/weight") for t in clip.first)
            and not whole
            and any(j.value > LEAP_LOG2 for j in jumps)
        ):
            continue  # no update moves one element that far: see corrupted weight
        tensors = tuple(t for j in jumps for t in shared(clip, j) if t in clip.first) or clip.first
        sat = 2.0 ** clip.extra.get("sat_log2", 0.0)
        yield about(
            clip,
            cause="stale_scale_saturation",
            symptom="nonfinite" if nan else "overflow",
            severity="critical" if nan or clip.rows >= chronic else "warning",
            confidence=0.9 if nan and clip.peak > MASS_PCT else _confidence(clip, jumps, symptoms),
            tensors=tensors,
            lasting=True if nan else None,
            order="backward" if tensors and tensors[0].endswith(("grad_output", "grad_input")) else "forward",
            summary=f"{tensors[0]} clips at step {clip.onset:,}: its values are up to {sat:,.3g} times what "
            f"the scale from earlier steps can hold{' and the cast turns them into NaN' if nan else ''}.",
            evidence=[
                Evidence("overflow_pct", clip.peak_step, clip.peak, "near 0", clip.peak_tensor),
                Evidence("amax * scale / format maximum", clip.onset, sat, "below 2", tensors[0]),
                *(
                    Evidence("log2 amax above its level", j.peak_step, j.peak, "below 1.8", j.peak_tensor)
                    for j in jumps[:1]
                ),
                *(bad_values(n) for n in nan[:1]),
            ],
            remedy=REMEDY,
            decisive_test="Replay from the last clean step with current scaling for this layer: "
            "the clipping disappears.",
        )


def _confidence(clip: Symptom, jumps: list[Symptom], symptoms: Symptoms) -> float:
    if _spike_only(clip, symptoms):
        return SPIKE_CONFIDENCE
    if clip.signal == AT_LEAP:
        return 0.9  # so much of a tensor is no outlier
    if not jumps:
        return 0.75
    if max(j.rows for j in jumps) > 1:
        return 0.93  # the tensor stays large: the scale had to follow
    return 0.65 if jumps[0].open else 0.75  # one step so far: an outlier would look the same


def _wrong_scale(clip: Symptom, symptoms: Symptoms) -> bool:
    for signal in ("scale_high", "scale_nonfinite", "scale_reset"):
        for s in symptoms.active(signal, clip.onset, slack=1):
            if s.rank == clip.rank and set(clip.first) & set(s.tensors):
                return True
    return False


def _optimizer_first(clip: Symptom, symptoms: Symptoms) -> bool:
    """The optimizer moved the weights out of range before anything clipped: saturation is a consequence."""
    movers = ("update_jump", "norm_jump", "weights_jump", "lr_jump")
    return any(s.onset < clip.onset <= s.last + 16 for s in symptoms.of(*movers))


def _spike_only(clip: Symptom, symptoms: Symptoms) -> bool:
    """One step of outliers that leaves an idle scale behind: a poisoned history, not a stale scale."""
    return any(
        shared(clip, h) and h.rank == clip.rank
        for h in symptoms.near("headroom_up", clip.onset, after=clip.rows + 1)
    )


RULE = Rule(
    "FS201",
    "stale_scale_saturation",
    ("stale_scale_saturation",),
    (
        Need("overflow_pct", ("input", "weight", "grad_output")),
        Need("scale", ("input", "weight", "grad_output")),
        Need("amax", ("input", "weight", "grad_output")),
    ),
    check,
    thresholds=(
        CLIPPED,
        CHRONIC,
    ),
)
