"""FS411 bad batch.

What it checks
    A loss spike that comes and goes with the data.
Why it matters
    Mostly it does not: the optimizer clips it and goes on. It matters when it repeats, or when it hides
    another fault.
How it decides
    The loss jumps far above its level for one to a few steps and returns, while no precision signal, no
    update and no learning rate moved before it. A spike that sound data can make is a note, no alarm.
What excludes it
    A rate, update, parameter norm, scale or clipped tensor that moved first; missing labels; a loss that
    stays up (data shift).
Known false positives
    Curricula with rare hard documents; a spike that sound data can make (3 nats, 1.5 times the level, or 13
    standard deviations, which batches of one sequence pass last) is a note.
What to do
    Look at the batch, filter it, keep gradient clipping on.
Source
    Measured: two random batches cost +4.1 nats at once and 0.004 afterwards; amax and clipping do not move.
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

SPIKE_ROWS = 12  # a stretch of bad batches; longer is a shift of the data
SERIES_ROWS = 6  # so many in a row are no accident, however small
BEFORE_STEPS = 4
HARD_SIGMA = 13.0  # in the loss's own spread sound batches reach 10.8, garbled ones are at 15.5 or more
HARD_NATS, HARD_SHARE = 3.0, 1.5  # sound batches reach 2.6 nats and 1.15 of the level, garbled ones 4 and 2.4
MOVERS = ("lr_jump", "norm_jump", "update_jump", "weights_jump", "clipping", "scale_high", "scale_reset",
          "scale_nonfinite",
          "sqnr_drop_all", "no_labels")  # fmt: skip
REMEDY = Remedy(
    "Look at the batch of this step (ids, repeated text, labels), filter it, keep clipping at 1.0. If "
    "spikes repeat, restart a hundred steps earlier and skip these batches.",
    {
        "transformer_engine": "no setting: data",
        "torchao": "no setting: data",
        "megatron": "--clip-grad 1.0; --rerun-mode validate_results tells data from hardware",
        "deepspeed": '"gradient_clipping": 1.0',
    },
)


def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """One finding per spike that returned."""
    for s in symptoms.of("loss_jump"):
        if s.open or s.rows > SPIKE_ROWS or s.rows_after < s.rows + 1:
            continue
        if any(symptoms.near(name, s.onset, before=BEFORE_STEPS) for name in MOVERS):
            continue
        grads = symptoms.near("grad_norm_jump", s.onset, before=1, after=1)
        yield about(
            s,
            cause="bad_batch",
            symptom="spike_recovered",
            severity="warning"
            if (s.rows >= SERIES_ROWS and s.rows > (s.last - s.onset) / symptoms.stride)
            or (s.peak > max_ordinary(s.expected) and s.peak > HARD_SIGMA * s.extra.get("sigma", 0.0))
            else "info",
            confidence=0.5 if not run.stats else 0.85 if grads else 0.75,
            detected=max(s.detected or s.onset, s.onset + (s.rows + 1) * symptoms.stride),  # it came back
            summary=f"A loss spike of +{s.peak:.2f} nats at step {s.onset:,}, gone by step {s.last + 1:,}: "
            "the batch, not the precision.",
            evidence=[
                Evidence("loss above its level", s.peak_step, s.peak, "below 7 standard deviations"),
                *(
                    Evidence(
                        "grad_norm",
                        g.peak_step,
                        2**g.peak * (g.expected or 1.0),
                        f"near {g.expected or 0:.3g}",
                    )
                    for g in grads[:1]
                ),
            ],
            remedy=REMEDY,
            decisive_test="Replay this batch from the checkpoint before it, in BF16: the same "
            "loss proves the data.",
        )


def max_ordinary(level: float | None) -> float:
    """Nats by which a hard but sound batch may pass the level: garbled ones pass it by far more."""
    return min(HARD_NATS, HARD_SHARE * level) if level is not None and level > 0 else HARD_NATS


RULE = Rule("FS411", "bad_batch", ("bad_batch",), (Need("loss"),), check)
