"""FS412 data shift.

What it checks
    A loss that steps up to a new level and stays, with healthy numerics.
Why it matters
    A new domain is learned away; corrupted labels cost an offset for good. Neither is a precision fault, and
    treating it as one wastes the run.
How it decides
    The cumulative sum of the loss above its level passes 12 standard deviations, no tensor, scale, update or
    learning rate moved before it, and the loss on a fixed held-out batch, where logged, did not step.
What to do
    Mark the boundary in the data, check labels and tokenizer on its far side.
Source
    Measured: 25 % random labels cost +1.2 nats at once and +0.9 for good; the held-out loss does not move at
    the step.
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
)

BEFORE_STEPS = 24
MIN_ROWS = 3
MOVERS = ("loss_scale_cut",
          "lr_jump", "norm_jump", "update_jump", "weights_jump", "clipping", "scale_high", "scale_low",
          "scale_reset",
          "scale_nonfinite", "sqnr_drop_all", "underflow", "unchanged", "loss_constant",
          "grad_norm_zero")  # fmt: skip
REMEDY = Remedy(
    "Check the data from this step on: source, labels, tokenizer, shuffling. Log data_id and a "
    "fixed held-out batch (eval_loss) "
    "so that the next shift is recognised at once.",
    {
        "transformer_engine": "no setting: data",
        "torchao": "no setting: data",
        "megatron": "compare --data-path blend and --split before and after",
        "deepspeed": "no setting: data",
    },
)


def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """One finding per lasting step of the loss."""
    for s in symptoms.of("loss_shift"):
        if (
            any(symptoms.near(name, s.onset, before=BEFORE_STEPS, after=8) for name in MOVERS)
            or s.rows < MIN_ROWS
        ):
            continue
        held_out = symptoms.near("eval_jump", s.onset, before=2, after=16)
        has_eval = "eval_loss" in run.scalars
        confidence = 0.8 if has_eval and not held_out else 0.45 if held_out else 0.62
        jumps = symptoms.near("loss_jump", s.onset, before=2, after=8)
        yield about(
            s,
            cause="data_shift",
            symptom="spike_not_recovered",
            severity="warning",
            confidence=confidence,
            onset=jumps[0].onset if jumps else s.onset,
            onset_last=s.detected,
            summary=f"The loss stepped up by {s.peak:.2f} nats about step {s.onset:,} and stays, "
            "with healthy numerics.",
            evidence=[
                Evidence("loss above its level", s.peak_step, s.peak, f"{s.expected or 0:.3g}"),
                *(
                    Evidence("eval_loss above its level", h.peak_step, h.peak, "unchanged")
                    for h in held_out[:1]
                ),
            ],
            remedy=REMEDY,
            decisive_test="Train 20 steps on data from before the boundary: the loss returns at "
            "once if the data changed.",
        )


RULE = Rule("FS412", "data_shift", ("data_shift",), (Need("loss"), Need("eval_loss")), check)
