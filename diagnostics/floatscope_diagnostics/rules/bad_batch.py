"""FS411 bad batch.

What it checks
    A loss spike that comes and goes with the data.
Why it matters
    Mostly it does not: the optimizer clips it and goes on. It matters when it repeats, or when it hides
    another fault.
How it decides
    The loss jumps far above its level for one to a few steps and returns, while no precision signal, no
    update and no learning rate moved before it. A spike that sound data can make is a note, no alarm. Without
    tensor statistics the whole curve is judged: a rise of a fifth and 8 of the noise's deviations above the
    best level that came back; one of 1.3 times and three points or more is an alarm, a shorter one, one in
    the warm-up or one that followed the learning rate a note.
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

from floatscope_diagnostics.curve_shapes.telling import is_notable, of_curve, times
from floatscope_diagnostics.placing import observed
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

SPIKE_ROWS = 12  # a stretch of bad batches; longer is a shift of the data
MOST_SPIKES = 4
# so many in a row are no accident, however small
SERIES = Threshold(
    "series_rows",
    "logged steps",
    6.0,
    2.0,
    12.0,
    "Spikes on so many steps of one stretch are an alarm, however small.",
)
BEFORE_STEPS = 4
# in the loss's own spread sound batches reach 10.8, garbled ones are at 15.5 or more
HIGH = Threshold(
    "spike_sigma",
    "deviations of the loss",
    13.0,
    7.0,
    1000.0,
    "A single spike must also be as high as this to be an alarm.",
)
# sound batches reach 2.6 nats and 1.15 of the level, garbled ones 4 and 2.4
HARD_SHARE = 1.5
HARD = Threshold(
    "spike_nats",
    "nats",
    3.0,
    0.4,
    100.0,
    "A single spike above this, or above 1.5 times the level of the loss where that is less, is an "
    "alarm; a lower one is a note.",
)
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
    if run.curves_only:
        yield from _from_curves(symptoms, run)
        return
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
            if (s.rows >= SERIES.of(run) and s.rows > (s.last - s.onset) / symptoms.stride)
            or (
                s.peak > max_ordinary(s.expected, HARD.of(run))
                and s.peak > HIGH.of(run) * s.extra.get("sigma", 0.0)
            )
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


def _from_curves(symptoms: Symptoms, run: RunFacts) -> Iterator[Finding]:
    """The spikes that stand out most; of a series of many the others add nothing."""
    spikes = symptoms.of("curve_spike")
    most = sorted(spikes, key=lambda s: (is_notable(s), s.extra["factor"]), reverse=True)[:MOST_SPIKES]
    for s in sorted(most, key=lambda s: (s.segment, s.onset)):
        notable = is_notable(s)
        why = "in the warm-up" if s.extra.get("early") else ""
        why = "with the learning rate" if s.extra.get("follows_rate") else why
        grads = [g for g in symptoms.near("grad_norm_jump", s.onset, before=2, after=2) if notable]
        yield of_curve(
            s,
            cause="bad_batch",
            symptom="spike_recovered",
            severity="warning" if notable else "info",
            confidence=0.5,
            summary=f"The {s.peak_tensor} rose {times(s)} at step {s.onset:,}{why and ' ' + why} and was "
            f"back after step {s.last:,}.",
            evidence=[
                Evidence(str(s.peak_tensor), s.peak_step, s.peak, f"near {s.expected or 0:.4g}"),
                *(observed(g) for g in grads[:1]),
            ],
            alternatives=(Alternative("lr_divergence", 0.4, "it came back by itself"),),
            remedy=REMEDY,
            decisive_test="Replay the batches of these steps from the checkpoint before: the same rise "
            "proves the data.",
        )


def max_ordinary(level: float | None, most: float) -> float:
    """Nats by which a hard but sound batch may pass the level: garbled ones pass it by far more."""
    return min(most, HARD_SHARE * level) if level is not None and level > 0 else most


RULE = Rule(
    "FS411",
    "bad_batch",
    ("bad_batch",),
    (Need("loss"),),
    check,
    thresholds=(
        HARD,
        HIGH,
        SERIES,
    ),
)
