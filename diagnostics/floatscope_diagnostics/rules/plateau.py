"""FS427 plateau.

What it checks
    Whether training has stopped moving: the learning rate is 0, or the loss makes no progress.
Why it matters
    The run burns compute and learns nothing, with perfect numerics.
How it decides
    The learning rate drops to exactly 0 after a working phase; updates are 0 and all weights stay. A run that
    ends its schedule and stops within a few steps is not reported. Without tensor statistics the whole curve
    is judged as well: over 60 points or more from the start of the run no change of 1 % that the noise
    allows to see. That is an alarm where the level is that of guessing (the logarithm of a usual number of
    classes) or of a language model that knows word frequencies only (4 nats), or where the loss had fallen
    by less than 40 % and the rate has not decayed; else a note.
What excludes it
    A rate that had decayed below 2 % of its peak before it was 0 is a note.
    A last step at rate 0 at the end of the schedule; a loss that has come far down; a log that begins in the
    middle of a run; noise in which a change of 1 % cannot be seen.
Known false positives
    Fine-tuning on data the model knows has nothing to learn; below 4 nats it is a note. A warm-up that starts
    at a rate of exactly 0 is not reported.
What to do
    Check the schedule's length against the run's; where nothing was ever learned try to learn one batch by
    heart first.
Source
    The rate of 0 is an invariant. Levels: a uniform guess costs ln(classes); unigram entropy of English text
    in subword tokens is 6 to 8 nats.
"""

from __future__ import annotations

from collections.abc import Iterator

from floatscope_diagnostics.curve_shapes.telling import is_notable, of_curve
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
    proof_after,
)
from floatscope_diagnostics.thresholds import Threshold

# schedules that decay to 0 have one last step at 0
ZERO_RATE = Threshold(
    "zero_rate_rows",
    "logged steps",
    4.0,
    2.0,
    1000000.0,
    "The learning rate must be 0 for so many logged steps.",
)
# Of the largest rate: a schedule that has run out, or a rate that is printed with too few digits.
SPENT_SHARE = 0.02
REMEDY = Remedy(
    "Check the schedule: total steps, resumed position, minimum rate.",
    {
        "transformer_engine": "no setting",
        "torchao": "no setting",
        "megatron": "--lr-decay-iters, --min-lr; --override-opt-param-scheduler after a resume",
        "deepspeed": '"scheduler": total_num_steps and warmup_min_lr',
    },
)


STUCK = Remedy(
    "Train on one single batch: if its loss does not fall either, look for labels that do not fit the "
    "inputs, frozen parameters, a wrong loss mask or a rate that is far too small or too large.",
    {
        "transformer_engine": "no setting",
        "torchao": "no setting",
        "megatron": "--lr, --lr-warmup-iters; check the labels of --data-path",
        "deepspeed": "check that the optimizer got the parameters that are trained",
    },
)


def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """One finding per stretch at a rate of 0, and one for a loss that makes no progress."""
    if run.curves_only:
        yield from _from_curves(symptoms, run)
    for s in symptoms.of("lr_zero"):
        if s.rows < ZERO_RATE.of(run):
            continue
        decayed = s.expected is not None and s.value <= SPENT_SHARE * s.expected
        still = symptoms.near("unchanged", s.onset, before=1, after=4)
        yield about(
            s,
            cause="plateau",
            symptom="plateau",
            severity="info" if decayed else "warning",
            confidence=0.92 if still else 0.85,
            detected=proof_after(s, int(ZERO_RATE.of(run)), symptoms),
            summary=f"The learning rate is 0 since step {s.onset:,}: nothing is learned any more.",
            evidence=[
                Evidence("lr", s.onset, 0.0, f"near {s.value:.3g}"),
                *(Evidence("unchanged_pct", u.peak_step, u.peak, "near 0", u.peak_tensor) for u in still[:1]),
            ],
            remedy=REMEDY,
            decisive_test="Print the scheduler's rate for the next steps.",
        )


def _from_curves(symptoms: Symptoms, run: RunFacts) -> Iterator[Finding]:
    for s in symptoms.of("curve_plateau"):
        level, never, classes = s.value, s.extra.get("never", 0.0) > 0, int(s.extra.get("chance", 0.0))
        what = f"The {s.peak_tensor} has stayed at {level:,.4g} since step {s.onset:,}"
        if never:
            what = f"The {s.peak_tensor} has not fallen at all: {level:,.4g} from step {s.onset:,} on"
        guess = f", the logarithm of {classes:,}: the model guesses" if classes else ""
        yield of_curve(
            s,
            cause="plateau",
            symptom="plateau",
            severity="warning" if is_notable(s) else "info",
            confidence=0.7 if "lr" in run.scalars else 0.5,
            summary=f"{what}{guess}.",
            evidence=[Evidence(str(s.peak_tensor), s.last, level, "falling")],
            alternatives=(Alternative("dead_logits", 0.2, "it still scatters from step to step"),),
            remedy=STUCK,
            decisive_test="Train on one batch again and again: a sound model and optimizer learn it by "
            "heart.",
        )


RULE = Rule("FS427", "plateau", ("plateau",), (Need("lr"), Need("loss")), check, thresholds=(ZERO_RATE,))
