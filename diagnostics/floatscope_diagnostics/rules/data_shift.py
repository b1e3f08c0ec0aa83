"""FS412 data shift.

What it checks
    A loss that steps up to a new level and stays, with healthy numerics.
Why it matters
    A new domain is learned away; corrupted labels cost an offset for good. Neither is a precision fault, and
    treating it as one wastes the run.
How it decides
    The cumulative sum of the loss above its level passes 12 standard deviations, no tensor, scale, update or
    learning rate moved before it, and the loss on a fixed held-out batch, where logged, did not step with it.
    Without tensor statistics the whole curve is judged: it jumps by a fifth and 8 of the noise's deviations
    above its best level and is still there at the end, below its start; less than 1.3 times is a note.
What excludes it
    A precision signal, rate or update that moved first; a held-out loss on fixed data that steps as far
    (operation fault); single hard batches with steps at the old level between them.
Known false positives
    A planned change of the data: it is one, and the finding is right, but nothing has to be done. Mark it
    with data_id.
What to do
    Mark the boundary in the data, check labels and tokenizer on its far side.
Source
    Measured: 25 % random labels cost +1.2 nats at once and +0.9 for good; the held-out loss does not move at
    the step.
"""

from __future__ import annotations

from collections.abc import Iterator

from floatscope_diagnostics.curve_shapes.telling import is_notable, of_curve, times
from floatscope_diagnostics.placing import held_out_step, loss_stepped_at
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

BEFORE_STEPS = 24
MIN_ROWS = 3
SHIFTED = Threshold(
    "shift_nats",
    "nats",
    0.0,
    0.0,
    100.0,
    "A step of the loss that stays below this is left out; 0 leaves it to the spread of the loss itself.",
)
HIGH_ROWS, HIGH_SHARE = 8, 0.5  # steps two deviations up: hard batches leave the rest at the level
MOVERS = (
    "lr_jump", "clipping", "scale_high", "scale_low", "scale_reset", "scale_nonfinite",
    "sqnr_drop_all", "underflow", "unchanged", "loss_constant", "grad_norm_zero",
)  # fmt: skip
UPDATES = ("norm_jump", "update_jump", "weights_jump")  # the loss of a step comes before its update
REMEDY = Remedy(
    "Check the data from this step on: source, labels, tokenizer, shuffling. Log data_id and a fixed "
    "held-out batch (eval_loss) so that the next shift is recognised at once.",
    {
        "transformer_engine": "no setting: data",
        "torchao": "no setting: data",
        "megatron": "compare --data-path blend and --split before and after",
        "deepspeed": "no setting: data",
    },
)


def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """One finding per lasting step of the loss."""
    if run.curves_only:
        yield from _from_curves(symptoms, run)
        return
    for s in symptoms.of("loss_shift"):
        began = loss_stepped_at(s, symptoms)
        high = s.extra.get("total_high", 0.0)
        if s.peak < SHIFTED.of(run) or s.rows < MIN_ROWS or (high < HIGH_ROWS and high < HIGH_SHARE * s.rows):
            continue
        if _moved_before(symptoms, began, before=BEFORE_STEPS):
            continue
        step = held_out_step(began, s.value, symptoms)
        held_out = [] if step is None else [step]
        judged = any(e.last >= began for e in symptoms.of("evaluated"))
        confidence = 0.45 if held_out else 0.8 if judged else 0.62 if run.stats else 0.5
        yield about(
            s,
            cause="data_shift",
            symptom="spike_not_recovered",
            severity="warning",
            confidence=confidence,
            onset=began,
            onset_last=s.detected,
            summary=f"The loss stepped up by {s.peak:.2f} nats about step {began:,} and stays, "
            + ("with healthy numerics." if run.stats else "and no statistics of tensors are logged."),
            evidence=[
                Evidence("loss above its level", s.peak_step, s.peak, f"{s.expected or 0:.3g}"),
                *(
                    Evidence("eval_loss above its level", h.peak_step, h.peak, "unchanged")
                    for h in held_out[:1]
                ),
            ],
            alternatives=_not_excluded(run),
            remedy=REMEDY,
            decisive_test="Train 20 steps on data from before the boundary: the loss returns at "
            "once if the data changed.",
        )


def _from_curves(symptoms: Symptoms, run: RunFacts) -> Iterator[Finding]:
    for s in symptoms.of("curve_step"):
        yield of_curve(
            s,
            cause="data_shift",
            symptom="spike_not_recovered",
            severity="warning" if is_notable(s) else "info",
            confidence=0.5,
            summary=f"The {s.peak_tensor} jumped {times(s)} about step {s.onset:,} and has not come back.",
            evidence=[Evidence(str(s.peak_tensor), s.peak_step, s.peak, f"near {s.expected or 0:.4g}")],
            alternatives=_not_excluded(run),
            remedy=REMEDY,
            decisive_test="Train 20 steps on data from before the boundary: the loss returns at "
            "once if the data changed.",
        )


def _not_excluded(run: RunFacts) -> tuple[Alternative, ...]:
    """What only signals that are not logged could exclude."""
    if "lr" not in run.scalars and "update_norm" not in run.scalars:
        return (Alternative("lr_divergence", 0.4, "neither the learning rate nor the update norm is logged"),)
    if not run.stats:
        return (Alternative("op_kernel_fault", 0.3, "no statistics of tensors are logged"),)
    return ()


def _moved_before(symptoms: Symptoms, onset: int, *, before: int) -> bool:
    """Whether a precision signal, the rate or an update moved before the loss did; later is a consequence."""
    if any(symptoms.near(name, onset, before=before, after=1) for name in MOVERS):
        return True
    return any(m.onset < onset for name in UPDATES for m in symptoms.near(name, onset, before=before))


RULE = Rule(
    "FS412", "data_shift", ("data_shift",), (Need("loss"), Need("eval_loss")), check, thresholds=(SHIFTED,)
)
