"""FS421 learning-rate divergence.

What it checks
    Whether the optimizer takes steps that are too long: the learning rate jumps, or the loss turns and climbs
    at full rate.
Why it matters
    It looks like an FP8 blow-up, because amax and clipping rise a few steps later, but it is the same in
    BF16.
How it decides
    Order: learning rate or update first, loss one step later, FP8 statistics last. Without a jump of the
    rate, a loss that climbs for long while no tensor was clipped or flushed before it, surer when the
    gradients grow with it; a loss that looked like a shift and goes on rising was a climb. Without tensor
    statistics the whole curve is judged: the rate jumped 2.8 times above its largest value, and the loss left
    its best level at that point for good. A rate that returns to an earlier peak (warm restarts) is no jump.
What excludes it
    A precision signal before the turn; a loss that went up in one step (data shift, operation fault).
Known false positives
    With tensor statistics planned restarts of a cyclic schedule; a curriculum that becomes harder little by
    little turns the loss as well.
What to do
    Lower the rate or warm up longer, clip, restart before the climb.
Source
    Measured: rate x20 moves the update at once, the loss one step later, clipping up to four steps later,
    with FP8 on and off.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from floatscope_diagnostics.curve_shapes.telling import of_curve, times
from floatscope_diagnostics.episodes import Symptom
from floatscope_diagnostics.placing import observed, stepped
from floatscope_diagnostics.precision import fitting, runs_fp8
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

AFTER_STEPS = 12
SLOW_ROWS = 64  # in which the loss follows gradients that have only become somewhat larger
LOSS = ("loss_shift", "loss_jump", "weights_jump", "loss_nonfinite")
STILL_HIGH = 2.0  # times the rate before the jump: the cause goes on
CLIMB_ROWS = 6
CLIMBED = Threshold(
    "climb_nats",
    "nats",
    0.5,
    0.5,
    100.0,
    "Without a jump of the learning rate the loss must climb by so much above its lowest level.",
)
GOES_ON = 2.0  # times as far above its level as when the shift was proven: no new level, but a climb
PRECISION = ("clipping", "underflow", "scale_high", "scale_low", "scale_nonfinite", "scale_reset",
             "sqnr_drop_all",
             "amax_trend", "unchanged", "near_limit")  # fmt: skip
FP8 = Remedy(
    "Go back before the climb, lower the learning rate (to about a third) or warm up longer, and clip the "
    "gradient norm. FP8 narrows the stable range: a BF16 run at this rate tells how much.",
    {
        "transformer_engine": "no FP8 setting helps",
        "torchao": "no FP8 setting helps",
        "megatron": "--lr, --lr-warmup-iters, --clip-grad 1.0",
        "deepspeed": '"scheduler": {"type": "WarmupLR"}, "gradient_clipping": 1.0',
    },
)
PLAIN = Remedy(
    "Go back before the climb, lower the learning rate (to about a third) or warm up longer, and clip the "
    "gradient norm.",
    {
        "transformer_engine": "no setting: the optimizer",
        "torchao": "no setting: the optimizer",
        "megatron": "--lr, --lr-warmup-iters, --clip-grad 1.0",
        "deepspeed": '"scheduler": {"type": "WarmupLR"}, "gradient_clipping": 1.0',
    },
)


def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """Findings from a jump of the rate, and from a climb at full rate."""
    if run.curves_only:
        yield from _from_curves(symptoms)
        return
    jumps = symptoms.of("lr_jump")
    for s in jumps:
        effects = [
            e
            for name in (
                "loss_shift",
                "loss_jump",
                "weights_jump",
                "grad_norm_jump",
                "grad_norm_shift",
                "loss_nonfinite",
            )
            for e in symptoms.near(
                name, s.onset, before=0 if name == "weights_jump" else 1, after=AFTER_STEPS
            )
        ]
        slow = [e for n in LOSS for e in symptoms.near(n, s.onset, before=AFTER_STEPS, after=SLOW_ROWS)]
        if not effects or (all(e.signal == "grad_norm_shift" for e in effects) and not slow):
            continue  # gradients that wander as at any other rate: a restart that the model bears
        proof = min(max(e.detected or e.onset, s.onset) for e in effects)
        end = max([s.last, *(e.last for e in effects)])
        high = window.last_scalars.get("lr", 0.0) > STILL_HIGH * (s.expected or 0.0)
        lasting = high or any(e.open for e in effects)
        found = about(
            s,
            cause="lr_divergence",
            symptom="divergence",
            severity="critical",
            confidence=0.95 if any(e.signal in LOSS for e in effects) else 0.8,
            detected=proof,
            lasting=lasting,
            summary=f"The learning rate jumped {s.extra.get('factor', 0):.3g} times at step "
            f"{s.onset:,} and training diverges.",
            evidence=[
                Evidence("lr", s.onset, s.extra.get("lr"), f"near {s.expected or 0:.3g}"),
                *(observed(e) for e in effects[:3]),
            ],
            remedy=fitting(run, FP8, PLAIN),
            decisive_test="Run the same steps with FP8 off: the same divergence proves the optimizer."
            if runs_fp8(run)
            else "Run the same steps at the old rate: the loss goes on falling.",
        )
        yield found if lasting else replace(found, last=end, resolved=end + 1)
    if not jumps:
        yield from _climbs(symptoms, run)


def _from_curves(symptoms: Symptoms) -> Iterator[Finding]:
    for s in symptoms.of("curve_divergence", "curve_step", "curve_drift"):
        if not s.extra.get("rate_jump"):
            continue
        yield of_curve(
            s,
            cause="lr_divergence",
            symptom="divergence",
            severity="critical",
            confidence=0.9,
            summary=f"The learning rate jumped about step {s.onset:,} and the {s.peak_tensor} rose "
            f"{times(s)}.",
            evidence=[
                Evidence(str(s.peak_tensor), s.peak_step, s.peak, f"near {s.expected or 0:.4g}"),
                Evidence("lr", s.onset, "jumped above its earlier peak", "its schedule"),
            ],
            remedy=PLAIN,
            decisive_test="Run the same steps at the old rate: the loss goes on falling.",
        )


def _climbs(symptoms: Symptoms, run: RunFacts) -> Iterator[Finding]:
    for s in symptoms.of("loss_climb"):
        if any(symptoms.near(name, s.onset, before=64, after=8) for name in PRECISION) or s.rows < CLIMB_ROWS:
            continue
        if s.peak < CLIMBED.of(run):
            continue
        if "lr" not in run.scalars or stepped(s, symptoms):
            continue
        lead, first = _grown(symptoms, s), _noticed_as(symptoms, s)
        grads = [
            g for n in ("grad_norm_shift", "grad_norm_jump") for g in symptoms.near(n, s.onset, after=128)
        ]
        with_gradients = bool(lead or grads)
        yield about(
            s,
            cause="lr_divergence",
            symptom="divergence",
            severity="critical",
            confidence=0.8 if with_gradients else 0.68,
            tensors=lead,
            onset=first.onset,
            onset_last=first.detected,
            order="backward" if lead else None,
            summary=f"The loss turned about step {first.onset:,} and has climbed {s.peak:.2f} nats at full "
            "learning rate, with no precision fault before it.",
            evidence=[Evidence("loss above its lowest level", s.peak_step, s.peak, "falling or flat")],
            remedy=fitting(run, FP8, PLAIN),
            decisive_test="Restart before the turn with a third of the rate: if the loss keeps "
            "falling, it was the rate.",
        )


def _noticed_as(symptoms: Symptoms, climb: Symptom) -> Symptom:
    """What noticed the climb first: a shift of the loss that went on rising after its proof, or the climb."""
    shifts = [
        x
        for x in symptoms.of("loss_shift")
        if (x.rank, x.segment) == (climb.rank, climb.segment)
        and climb.onset <= x.onset
        and x.detected is not None
        and climb.detected is not None
        and x.detected <= climb.detected
        and x.peak >= GOES_ON * x.settled_peak
    ]
    return min(shifts, key=lambda x: x.onset, default=climb)


def _grown(symptoms: Symptoms, climb: Symptom) -> tuple[str, ...]:
    found = [g for g in symptoms.of("grad_trend") if g.onset <= climb.last]
    return found[0].first if found else ()


RULE = Rule(
    "FS421",
    "lr_divergence",
    ("lr_divergence",),
    (Need("lr"), Need("loss"), Need("update_norm")),
    check,
    thresholds=(CLIMBED,),
)
