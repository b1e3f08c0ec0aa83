"""FS906 a restart.

What it checks
    Step numbers that go back: the run was resumed from an earlier checkpoint, or begun again.
Why it matters
    Mostly it does not. It matters when the loss is worse than before: a part of the state did not come back.
How it decides
    Every restart is a note. It is an alarm where the loss after it is 1.3 times the loss at the same step
    before.
What excludes it
    Files that hold several runs: those are told apart when they are read.
Known false positives
    A log whose steps are counted anew in every epoch and were not put together by its reader.
What to do
    Compare the loss of the first steps with that of the same steps before: a resume that restored everything
    goes on where it was.
Source
    Invariant: steps of one run ascend.
"""

from __future__ import annotations

from collections.abc import Iterator

from floatscope_diagnostics.curve_shapes.telling import of_curve
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
)
from floatscope_diagnostics.thresholds import Threshold

WORSE = Threshold(
    "worse_times",
    "times the loss before",
    1.3,
    1.01,
    100.0,
    "A loss so much higher after a restart makes it an alarm; else it is a note.",
)
REMEDY = Remedy(
    "Check that weights, optimizer state, scheduler and data position were restored together.",
    {
        "transformer_engine": "save and load the extra state with the weights",
        "torchao": "no setting: float8 with dynamic scales has no state",
        "megatron": "do not use --no-load-optim, --no-load-rng; check --override-opt-param-scheduler",
        "deepspeed": "load_checkpoint(load_optimizer_states=True, load_lr_scheduler_states=True)",
    },
)


def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """One finding about the last restart, with the number of all."""
    for s in symptoms.of("curve_restart"):
        factor, times = s.extra.get("factor"), int(s.extra.get("times", 1.0))
        worse = factor is not None and factor >= WORSE.of(run)
        often = "" if times == 1 else f", the last of {times:,} times"
        yield of_curve(
            s,
            cause="undetermined",
            symptom="restart",
            severity="warning" if worse else "info",
            confidence=0.5,
            summary=f"Steps went back from {s.value:,.0f} to {s.onset:,}{often}"
            + (f"; the loss is {factor:.2g} times what it was there before." if worse else "."),
            evidence=[Evidence("step", s.onset, float(s.onset), f"above {s.value:,.0f}")],
            alternatives=(
                Alternative("optimizer_state_fault", 0.35, "whether its state came back is not logged"),
                Alternative("master_weight_desync", 0.25, "whether the weights are the same is not logged"),
            ),
            remedy=REMEDY,
            decisive_test="Resume once more and print the loss of the first batch before any update: it is "
            "that of before if the weights came back, and the second step is if the optimizer did.",
        )


RULE = Rule("FS906", "restart", ("undetermined",), (Need("loss"),), check, thresholds=(WORSE,))
