"""FS424 loss scale collapse.

What it checks
    Whether FP16 dynamic loss scaling keeps halving and does not recover.
Why it matters
    Every halving is a skipped step, and at a tiny scale gradients flush to zero. Below 1 it is not a range
    problem any more: there is Inf or NaN in every backward.
How it decides
    Five halvings without a single growth in between, after the scale had settled, or a scale below 1. The
    search at the start of a run (2^32 or 2^16 downwards) and now and then a halving are normal and only
    noted. Without tensor statistics the scale is judged as a whole: below 1 at the end, five halvings without
    growth down to 64 or less past the start, or at its floor of 1 after 1024 and more with a fifth of the
    steps skipped.
What excludes it
    Halvings with growth in between; the search for the scale at the start; an activation at the format's
    limit, or a loss that stepped up first.
Known false positives
    A growth interval far longer than the usual time between two overflows.
What to do
    Roll back to before the first of these halvings, lower the learning rate or clip, or use BF16. Do not
    lower the floor.
Source
    Public reports: fairseq#512; the normal search is asked about in DeepSpeed#931 and CogVideo#233.
"""

from __future__ import annotations

from collections.abc import Iterator

from floatscope_diagnostics.curve_shapes.telling import of_curve
from floatscope_diagnostics.episodes import Symptom
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

REMEDY = Remedy(
    "Roll back to before the scale began to fall, then lower the learning rate, clip, or train in BF16. Do "
    "not lower the minimum loss scale: it only hides the Inf.",
    {
        "transformer_engine": "no setting: use BF16 parameters",
        "torchao": "no setting: use BF16",
        "megatron": "--bf16; or --loss-scale-window 1000 --hysteresis 2 with a lower --lr",
        "deepspeed": '"bf16": {"enabled": true}; or "fp16": {"loss_scale_window": 1000, "hysteresis": 2}',
    },
)

HALVED = Threshold(
    "halvings", "halvings", 5.0, 5.0, 60.0, "The loss scale must halve so many times without growing."
)
FORWARD_FIRST = ("rms_step", "gradients_step", "near_limit")  # an operation or a range that changed before


def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """A collapse is a finding; the search at the start is a note."""
    if run.curves_only:
        whole = list(_from_curves(symptoms))
        yield from whole
        if whole:
            return
    for s in symptoms.of("loss_scale_falls"):
        if s.peak < HALVED.of(run):
            continue
        first = [x for n in FORWARD_FIRST for x in symptoms.near(n, s.onset, before=4, after=1)]
        yield about(
            s,
            cause="loss_scale_collapse",
            symptom="loss_scale_collapse",
            severity="critical" if _below_one(s) else "warning",
            confidence=0.5 if first else 0.88,
            summary=f"The loss scale has halved {s.peak:.0f} times without recovering since step "
            f"{s.onset:,}, now {s.extra.get('scale', 0.0):.3g}"
            + (". Below 1 it is NaN or Inf in the backward, not the range." if _below_one(s) else "."),
            evidence=[Evidence("loss_scale halvings without growth", s.peak_step, s.peak, "below 5")],
            remedy=REMEDY,
            decisive_test="Run 50 steps in BF16 from before the first halving: if gradients stay finite it "
            "was the range, else look for the layer that makes Inf.",
        )
    for s in symptoms.of("loss_scale_search"):
        yield about(
            s,
            cause="loss_scale_collapse",
            symptom="loss_scale_collapse",
            severity="info",
            confidence=0.9,
            lasting=False,
            summary=f"Loss scale search at the start: {s.rows} overflows down to "
            f"{s.extra.get('scale', 0.0):,.0f}, ended at step {s.last:,}. This is normal.",
            evidence=[Evidence("loss_scale", s.last, s.extra.get("scale"), "settles")],
            remedy=Remedy("Nothing to do."),
            decisive_test="The scale stops falling and grows again after some thousand steps.",
        )


def _from_curves(symptoms: Symptoms) -> Iterator[Finding]:
    for s in symptoms.of("curve_scale_falls"):
        top, skipped = s.expected or 0.0, s.extra.get("skipped_pct")
        trains = s.extra.get("harmless", 0.0) > 0
        yield of_curve(
            s,
            cause="loss_scale_collapse",
            symptom="loss_scale_collapse",
            severity="warning" if trains or s.value >= 1.0 else "critical",
            confidence=0.88,
            summary=f"The loss scale fell from {top:,.4g} to {s.value:,.4g} since step {s.onset:,} and has "
            "not recovered" + (f"; {skipped:.0f} % of the steps were skipped." if skipped else "."),
            evidence=[
                Evidence("loss_scale", s.last, s.value, f"near {top:,.4g}"),
                *([Evidence("skipped_steps, % of all", s.last, skipped, "below 1")] if skipped else []),
            ],
            remedy=REMEDY,
            decisive_test="Run 50 steps in BF16 from before the first halving: if gradients stay finite it "
            "was the range, else look for the layer that makes Inf.",
        )


def _below_one(s: Symptom) -> bool:
    return s.extra.get("scale", 1.0) < 1.0


RULE = Rule(
    "FS424",
    "loss_scale_collapse",
    ("loss_scale_collapse",),
    (Need("loss_scale"),),
    check,
    thresholds=(HALVED,),
)
