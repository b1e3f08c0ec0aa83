"""FS202 amax history poisoning.

What it checks
    One outlier step after which the scale stays too small, so that ordinary values round to zero until the
    outlier leaves the amax history.
Why it matters
    Up to all of a tensor is zero for as many steps as the history is long (1,024 by default), and the loss is
    nearly blind to it: 90 % zeros in all MLP outputs cost 0.001 nats on average.
How it decides
    Order and duration: amax of a tensor spikes for one or two steps and returns; from the next step on the
    same tensor has many bits of unused range, as the recipe prescribes, and its underflow rises. An outlier
    of more than 64 times amax (a gradient's 4,096 times) is found from the third logged step on and while a
    run warms up.
What excludes it
    A tensor that stays large (stale scale saturation); a scale that is not the one the recipe gives
    (scale state fault); idle range without a spike before it.
Known false positives
    A bad batch may spike several tensors at once and leave idle scales for one history: the harm is real,
    the cause is the batch.
What to do
    Shorten the history or use most_recent, clip the outlier, or use a recipe without history. Resetting the
    amax history ends the outage at once.
Source
    Measured: factor 1e4 on all inputs gives 8 to 98 % zeros for exactly 32 steps with a history of 32. E4M3
    bears a factor of 1e3, E5M2 of 1e7.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from floatscope_diagnostics.columns import history_passes
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
    shared,
)
from floatscope_diagnostics.thresholds import Threshold

OVER_ROWS = 2  # behind its last row an episode with gaps of one row is known to be over
SPIKE_ROWS = 3  # the outlier itself lasts a step or two
IDLE = Threshold(
    "idle_bits",
    "bits",
    0.0,
    0.0,
    32.0,
    "A scale that leaves fewer bits of range unused than this, at its worst, is left out; 0 leaves it "
    "to the limit of the tensor itself.",
)
REMEDY = Remedy(
    "Reset the amax history of the tensors named (or wait for the outlier to leave it), then shorten the "
    "history or use a recipe without one, and clip or skip the outlier step.",
    {
        "transformer_engine": 'DelayedScaling(amax_history_len=16, amax_compute_algo="most_recent"), or '
        "Float8CurrentScaling(); to end it now: module.fp8_meta['scaling_fwd'] (gradients: 'scaling_bwd')"
        ".amax_history.zero_()",
        "torchao": "dynamic scaling has no history: the outage ends with the outlier step",
        "megatron": "--fp8-amax-history-len 1 --fp8-amax-compute-algo most_recent, or --fp8-recipe blockwise",
        "deepspeed": "wrap the forward in te.autocast with Float8BlockScaling()",
    },
)


def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """One finding per outlier that left an idle scale behind."""
    yield from _one_step(symptoms)
    yield from _lasting(symptoms, run, Signs("headroom_up", "amax_jump", "underflow"))
    yield from _lasting(symptoms, run, Signs("idle_after_leap", "amax_leap", "flushed_after_leap"))


@dataclass(frozen=True)
class Signs:
    """The signals of an idle scale, of the outlier before it and of what it rounds to zero."""

    idle: str
    spike: str
    flushed: str


def _lasting(symptoms: Symptoms, run: RunFacts, signs: Signs) -> Iterator[Finding]:
    history = history_passes(run.recipe) if run.recipe.get("amax_history_len") is not None else None
    for idle in symptoms.of(signs.idle):
        if idle.peak < IDLE.of(run):
            continue
        spikes = [
            j
            for j in symptoms.near(signs.spike, idle.onset, before=SPIKE_ROWS, after=-1)
            if j.rank == idle.rank and shared(idle, j) and j.rows <= SPIKE_ROWS and not j.open
        ]
        if not spikes:
            continue
        spike = spikes[-1]
        both = shared(spike, idle)
        zeros = [u for u in symptoms.near(signs.flushed, idle.onset, before=1, after=3) if shared(u, idle)]
        tensors = tuple(t for t in spike.first if t in both) or both
        named = f"{tensors[0]} and {len(both) - 1} more" if len(both) > 1 else tensors[0]
        length = f" for up to {history:,} steps" if history else ""
        yield about(
            idle,
            cause="amax_history_poisoning",
            symptom="underflow",
            severity="warning",
            confidence=0.96 if zeros else 0.85,
            onset=spike.onset,
            detected=max(idle.detected or idle.onset, spike.last + OVER_ROWS * symptoms.stride),
            tensors=tensors,
            order="backward" if tensors[0].endswith(("grad_output", "grad_input")) else "forward",
            summary=f"One outlier at step {spike.onset:,} poisoned the amax history of {named}"
            f"{_flushed(zeros, both)}{length}.",
            evidence=[
                Evidence(
                    "log2 amax above its level", spike.peak_step, spike.peak, "below 1.8", spike.peak_tensor
                ),
                Evidence(
                    "headroom_log2 above its level", idle.peak_step, idle.peak, "below 6", idle.peak_tensor
                ),
                *(
                    Evidence("underflow_pct", u.peak_step, u.peak, "near its level", u.peak_tensor)
                    for u in zeros[:1]
                ),
            ],
            remedy=REMEDY,
            decisive_test="Zero the amax history of this tensor: the scale must return at the next update.",
        )


def _flushed(zeros: Sequence[Symptom], tensors: Sequence[str]) -> str:
    """How much rounds to zero. tensors: those of the incident; the worst of several need not be the first."""
    if not zeros:
        return ""
    lost = f"{max(u.peak for u in zeros):.0f} %"
    if len(tensors) > 1:
        return f", up to {lost} of a tensor's values round to zero"
    return f", {lost} of its values round to zero"


def _one_step(symptoms: Symptoms) -> Iterator[Finding]:
    """With a history of one step the outage is one step: a spike, and the step after it flushed to zero."""
    for spike in symptoms.of("amax_jump"):
        if spike.rows > SPIKE_ROWS:
            continue
        if symptoms.near("headroom_up", spike.onset, after=SPIKE_ROWS):
            continue
        after = spike.last + symptoms.stride
        flushed = symptoms.near("underflow", after, after=1)
        zeros = next((u for u in flushed if u.rank == spike.rank and shared(spike, u)), None)
        if zeros is None:
            continue
        both = shared(spike, zeros)
        tensors = tuple(t for t in spike.first if t in both) or both
        yield about(
            zeros,
            cause="amax_history_poisoning",
            symptom="underflow",
            severity="warning",
            confidence=0.88,
            onset=spike.onset,
            tensors=tensors,
            order="backward" if tensors[0].endswith(("grad_output", "grad_input")) else "forward",
            summary=f"One outlier in {tensors[0]} at step {spike.onset:,}; the scale made from it rounds "
            f"{'' if zeros.peak_tensor == tensors[0] else 'up to '}{zeros.peak:.0f} % of the next step's "
            "values to zero.",
            evidence=[
                Evidence(
                    "log2 amax above its level", spike.peak_step, spike.peak, "below 1.8", spike.peak_tensor
                ),
                Evidence("underflow_pct", zeros.peak_step, zeros.peak, "near its level", zeros.peak_tensor),
            ],
            remedy=REMEDY,
            decisive_test="Replay both steps with current scaling: only the outlier's own step loses values.",
        )


RULE = Rule(
    "FS202",
    "amax_history_poisoning",
    ("amax_history_poisoning",),
    (
        Need("amax", ("input", "weight", "grad_output")),
        Need("scale", ("input", "weight", "grad_output")),
        Need("underflow_pct", ("input", "weight", "grad_output")),
    ),
    check,
    thresholds=(IDLE,),
)
