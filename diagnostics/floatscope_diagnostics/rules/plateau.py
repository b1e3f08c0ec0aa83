"""FS427 plateau.

What it checks
    Whether training has stopped moving because the learning rate is 0.
Why it matters
    The run burns compute and learns nothing, with perfect numerics.
How it decides
    The learning rate drops to exactly 0 after a working phase; updates are 0 and all weights stay. A run that
    ends its schedule and stops within a few steps is not reported.
What excludes it
    A last step at rate 0 at the end of the schedule; a rate that is small but not 0.
Known false positives
    A warm-up that starts at exactly 0 is not reported, since nothing had been learned before it.
What to do
    Check the schedule's length against the run's.
Source
    Invariant.
"""

from __future__ import annotations

from collections.abc import Iterator

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
    proof_after,
)

MIN_ROWS = 4  # schedules that decay to 0 have one last step at 0
REMEDY = Remedy(
    "Check the schedule: total steps, resumed position, minimum rate.",
    {
        "transformer_engine": "no setting",
        "torchao": "no setting",
        "megatron": "--lr-decay-iters, --min-lr; --override-opt-param-scheduler after a resume",
        "deepspeed": '"scheduler": total_num_steps and warmup_min_lr',
    },
)


def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """One finding per stretch at a rate of 0."""
    for s in symptoms.of("lr_zero"):
        if s.rows < MIN_ROWS:
            continue
        still = symptoms.near("unchanged", s.onset, before=1, after=4)
        yield about(
            s,
            cause="plateau",
            symptom="plateau",
            severity="warning",
            confidence=0.92 if still else 0.85,
            detected=proof_after(s, MIN_ROWS, symptoms),
            summary=f"The learning rate is 0 since step {s.onset:,}: nothing is learned any more.",
            evidence=[
                Evidence("lr", s.onset, 0.0, f"near {s.value:.3g}"),
                *(Evidence("unchanged_pct", u.peak_step, u.peak, "near 0", u.peak_tensor) for u in still[:1]),
            ],
            remedy=REMEDY,
            decisive_test="Print the scheduler's rate for the next steps.",
        )


RULE = Rule("FS427", "plateau", ("plateau",), (Need("lr"),), check)
