"""FS901 non-finite values without a known cause.

What it checks
    NaN or Inf in the loss, the gradient norm, a tensor, a gradient or an update.
Why it matters
    From the first such step on the weights are usually lost; every step after it is wasted.
How it decides
    No threshold. It speaks up only when no other rule explains the values.
What excludes it
    Any other rule that explains the values; overflows that a dynamic loss scale answers by halving.
Known false positives
    None: the values are there. What stays open is where they come from.
What to do
    Go back to the last clean step, log the statistics of all tensors around it, and look at the first tensor
    named.
Source
    Invariant; the order of tensors inside a step comes from the declared call order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from floatscope_diagnostics.episodes import Symptom
from floatscope_diagnostics.placing import bad_values
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

LASTING_ROWS = 3
SIGNALS = (
    "nonfinite_forward",
    "nonfinite_weight",
    "nonfinite_grad",
    "nonfinite_weight_grad",
    "loss_nonfinite",
)
INPUT_COUNTS = {("input", "nan_count"), ("output", "nan_count")}
UNLOCATED = (
    Alternative("invalid_input", 0.6, "non-finite values of the input are not counted"),
    Alternative("op_kernel_fault", 0.3, "non-finite values of the tensors are not counted"),
)
GRADIENTS = ("nonfinite_grad", "nonfinite_weight_grad")  # a dynamic loss scale overflows now and then


def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """One finding at the first non-finite value of the run."""
    yield from _gradient_norm(symptoms, run)
    found = [
        s
        for s in symptoms.of(*SIGNALS)
        if s.signal not in GRADIENTS or not symptoms.near("loss_scale_cut", s.onset, after=1)
    ]
    first = min(found, key=lambda s: s.onset, default=None)
    if first is None or first.detected is None:
        return
    here = [s for s in found if s.onset == first.onset and s.rank == first.rank]
    order = {name: k for k, name in enumerate(SIGNALS)}
    lead = min(here, key=lambda s: order[s.signal])
    where = f" in {lead.tensor}" if lead.tensor else " in the loss"
    yield Finding(
        cause="undetermined",
        symptom="nonfinite",
        severity="critical",
        confidence=0.5,
        onset=first.onset,
        detected=first.detected,
        last=None,
        rank=first.rank,
        segment=first.segment,
        tensors=lead.first,
        affected=len(lead.tensors),
        order="backward" if lead.signal == "nonfinite_grad" else "forward",
        summary=f"NaN or Inf appears{where} at step {first.onset:,}; no rule explains where it comes from.",
        evidence=tuple(_shown(s) for s in here),
        alternatives=() if lead.tensor or INPUT_COUNTS & run.stats else UNLOCATED,
        remedy=Remedy(
            "Stop, go back to the last clean step, and log nan_count, inf_count, amax and scale of every "
            "tensor for the steps before it."
        ),
        decisive_test="Replay the step with the same batch. If it fails again, the first tensor "
        "named leads to the operation.",
    )


def _shown(s: Symptom) -> Evidence:
    if s.tensor is None:
        return Evidence(s.signal, s.onset, s.value, "finite")
    return replace(bad_values(s), signal=s.signal, expected="finite")


def _gradient_norm(symptoms: Symptoms, run: RunFacts) -> Iterator[Finding]:
    """Step after step without a finite gradient norm; with loss scaling single ones are skipped steps."""
    for s in symptoms.of("grad_norm_nonfinite"):
        if s.rows < LASTING_ROWS or "loss_scale" in run.scalars:
            continue
        if symptoms.near("loss_nonfinite", s.onset, before=1, after=LASTING_ROWS):
            continue  # the loss is not finite either: the first value of all is named
        yield Finding(
            cause="undetermined",
            symptom="nonfinite",
            severity="warning",
            confidence=0.5,
            onset=s.onset,
            detected=s.onset if s.detected is None else s.detected,
            last=None if s.open else s.last,
            resolved=None if s.open else s.last + 1,
            rank=s.rank,
            segment=s.segment,
            summary=f"The gradient norm is NaN or Inf at every step since {s.onset:,}, although "
            "the loss is finite.",
            evidence=(Evidence("grad_norm", s.onset, s.value, "finite"),),
            remedy=Remedy(
                "Check whether the optimizer still steps; log grad_norm of every weight to find the layer."
            ),
            decisive_test="Print the gradient norm of every weight in one step: the layers whose norm is "
            "not finite.",
        )


RULE = Rule(
    "FS901",
    "nonfinite",
    ("undetermined",),
    (Need("nan_count", ("input", "output")), Need("loss")),
    check,
)
