"""FS426 overfitting.

What it checks
    A training loss that keeps falling while the loss on a fixed held-out batch rises.
Why it matters
    The model memorises: repeated data, or too many epochs. It is no numerical fault.
How it decides
    The held-out loss has climbed above its lowest level for several evaluations in a row while the training
    loss is below its level of that time. Without tensor statistics the whole curve is judged: two evaluations
    or more above the best one, by 5 % and three of the noise's deviations (2 % is a note), while the training
    loss fell; or a held-out loss where it began, at three times a training loss that fell to a third.
What excludes it
    A training loss that rises too; held-out noise below six of its own standard deviations.
Known false positives
    A held-out set from another domain than the one just being trained on.
What to do
    Stop at the best held-out loss, check for repeated batches, more data or regularisation.
Source
    Measured: two repeated batches send the training loss to 0.1 and the held-out loss from 2.4 to 4.9.
"""

from __future__ import annotations

from collections.abc import Iterator

from floatscope_diagnostics.curve_shapes.telling import is_notable, of_curve
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

PARTED = Threshold(
    "rise_nats",
    "nats",
    0.0,
    0.0,
    100.0,
    "A held-out loss that rises by less than this above its lowest is left out; 0 leaves it to the "
    "noise of the evaluations.",
)
REMEDY = Remedy(
    "Stop at the lowest held-out loss; check that the sampler does not repeat batches; add data or "
    "regularisation.",
    {
        "transformer_engine": "no setting",
        "torchao": "no setting",
        "megatron": "check consumed samples and --data-path weights after a resume",
        "deepspeed": "check the sampler's epoch and seed after a resume",
    },
)


def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """One finding per parting of training and held-out loss."""
    if run.curves_only:
        yield from _from_curves(symptoms)
        return
    for s in symptoms.of("eval_parts"):
        if s.peak < PARTED.of(run):
            continue
        yield about(
            s,
            cause="overfitting",
            symptom="overfit",
            severity="warning",
            confidence=0.88,
            onset_last=s.detected,
            summary=f"The held-out loss rises ({s.peak:.2f} nats above its lowest) while the training loss "
            f"falls, since about step {s.onset:,}.",
            evidence=[
                Evidence("eval_loss above its lowest level", s.peak_step, s.peak, "falling with the loss")
            ],
            remedy=REMEDY,
            decisive_test="Compare the ids of the last hundred batches: repeated ones prove it.",
        )


def _from_curves(symptoms: Symptoms) -> Iterator[Finding]:
    for s in symptoms.of("curve_overfit"):
        factor, fell = s.extra.get("factor", 1.0), s.extra.get("train_fell", 1.0)
        told = f"The held-out loss is {factor:.3g} times its best, of step {s.onset:,}, while "
        if s.extra.get("gap"):
            told = "The held-out loss has not come down since the first evaluation, while "
        yield of_curve(
            s,
            cause="overfitting",
            symptom="overfit",
            severity="warning" if is_notable(s) else "info",
            confidence=0.85,
            onset_last=s.detected,
            summary=f"{told}the training loss fell to {100 / fell:.3g} % of what it was.",
            evidence=[Evidence("eval_loss", s.peak_step, s.peak, f"near {s.expected or 0:.4g} or falling")],
            remedy=REMEDY,
            decisive_test="Evaluate the checkpoint of the lowest held-out loss and the last one on data that "
            "neither has seen: the older one is better.",
        )


RULE = Rule(
    "FS426", "overfitting", ("overfitting",), (Need("eval_loss"), Need("loss")), check, thresholds=(PARTED,)
)
