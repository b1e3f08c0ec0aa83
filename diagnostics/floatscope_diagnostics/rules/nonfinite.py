"""FS901 non-finite values without a known cause.

What it checks
    NaN or Inf in the loss, the gradient norm, a tensor, a gradient, an update or another logged scalar.
Why it matters
    From the first such step on the weights are usually lost; every step after it is wasted.
How it decides
    No threshold. It speaks up only when no other rule explains the values. Without tensor statistics other
    scalars are looked at as well: one that was finite and then is never finite again, and a loss or norm that
    never was; the gradient norm from three points on, with loss scaling from twelve. A loss that came back
    after a few bad points is a warning.
What excludes it
    Any other rule that explains the values; overflows that a dynamic loss scale answers by halving; scalars
    that are neither losses nor norms and never had a value (columns that are not filled).
Known false positives
    None: the values are there. What stays open is where they come from.
What to do
    Go back to the last clean step, log the statistics of all tensors around it, and look at the first tensor
    named.
Source
    Invariant; the order of tensors inside a step comes from the declared call order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from floatscope_diagnostics.curve_shapes.telling import of_curve
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
FEW_SHARE = 0.03  # of the finite points: bad ones that a run has got over
MUST_BE_FINITE = ("loss", "norm", "perplexity", "ppl", "nll", "mse")
# A column that was filled with numbers for so long without a gap and holds none in so many rows to the end.
FILLED_ROWS, LOST_ROWS = 100, 20
REMEDY = Remedy(
    "Stop, go back to the last clean step, and log nan_count, inf_count, amax and scale of every tensor for "
    "the steps before it."
)
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
    """One finding at the first non-finite value of each segment: a run that has gone back may break again."""
    if run.curves_only:
        yield from _scalars(symptoms, run)
    else:
        yield from _gradient_norm(symptoms, run)
    found = [
        s
        for s in symptoms.of(*SIGNALS)
        if s.signal not in GRADIENTS or not symptoms.near("loss_scale_cut", s.onset, after=1)
    ]
    for segment in sorted({s.segment for s in found}):
        yield from _first_of([s for s in found if s.segment == segment], symptoms, run)


def _first_of(found: Sequence[Symptom], symptoms: Symptoms, run: RunFacts) -> Iterator[Finding]:
    """What is found first in one segment."""
    first = min(found, key=lambda s: s.onset)
    if first.detected is None:
        return
    here = [s for s in found if s.onset == first.onset and s.rank == first.rank]
    order = {name: k for k, name in enumerate(SIGNALS)}
    lead = min(here, key=lambda s: order[s.signal])
    where = _where(lead, has_loss=any(s.signal == "loss_nonfinite" for s in here))
    back = _came_back(first, symptoms) if run.curves_only else None
    yield Finding(
        cause="undetermined",
        symptom="nonfinite",
        severity="critical" if back is None else "warning",
        confidence=0.5,
        onset=first.onset,
        detected=first.detected,
        last=None if back is None else back.last,
        resolved=None if back is None else back.last + 1,
        rank=first.rank,
        segment=first.segment,
        tensors=lead.first,
        affected=len(lead.tensors),
        order="backward" if lead.signal in GRADIENTS else "forward",
        summary=f"NaN or Inf appears in {where} at step {first.onset:,}; no rule explains where it comes "
        "from." + ("" if back is None else f" After step {back.last:,} the loss is finite again."),
        evidence=tuple(_shown(s) for s in here),
        alternatives=() if lead.tensor or INPUT_COUNTS & run.stats else UNLOCATED,
        remedy=REMEDY,
        decisive_test="Replay the step with the same batch. If it fails again, the first tensor "
        "named leads to the operation.",
    )


def _where(lead: Symptom, *, has_loss: bool) -> str:
    """The place in words; a weight's gradient goes by the name of the weight."""
    if not lead.tensor:
        return "the loss"
    place = f"the gradient of {lead.tensor}" if lead.signal == "nonfinite_weight_grad" else lead.tensor
    return f"the loss and {place}" if has_loss and lead.signal in GRADIENTS else place


def _came_back(first: Symptom, symptoms: Symptoms) -> Symptom | None:
    """The curve's own view of a loss that had a few bad points and is finite again; else None."""
    for s in symptoms.of("curve_nonfinite"):
        same = s.peak_tensor == "loss" and s.segment == first.segment
        if same and not s.open and s.rows <= FEW_SHARE * s.extra.get("finite", 0.0):
            return s
    return None


def _scalars(symptoms: Symptoms, run: RunFacts) -> Iterator[Finding]:
    """Other scalars that are not finite for good, told once for all that broke together."""
    found = [s for s in symptoms.of("curve_nonfinite") if s.open and s.peak_tensor != "loss"]
    lost = [s for s in symptoms.of("loss_nonfinite") if s.open]
    told: list[Symptom] = []
    for s in sorted(found, key=lambda s: (s.onset, not _matters(s))):
        if not (_matters(s) or ("loss" not in run.scalars and _was_filled(s))) or any(
            x.segment == s.segment and x.onset <= s.onset for x in (*lost, *told)
        ):
            continue
        told.append(s)
        others = [str(o.peak_tensor) for o in found if o.onset == s.onset and o is not s][:3]
        alone = "loss" not in run.scalars and "loss" in str(s.peak_tensor).lower()
        yield of_curve(
            s,
            cause="undetermined",
            symptom="nonfinite",
            severity="critical" if alone else "warning",
            confidence=0.5,
            summary=f"{s.peak_tensor} is NaN or Inf at each of its last {s.rows:,} points, since step "
            f"{s.onset:,}{', with ' + ', '.join(others) if others else ''}.",
            evidence=[Evidence(str(s.peak_tensor), s.onset, s.value, "finite")],
            alternatives=UNLOCATED,
            remedy=REMEDY,
            decisive_test="Print this number's own inputs in one step: the first that is not finite names "
            "the operation.",
        )


def _was_filled(s: Symptom) -> bool:
    """Whether a column held numbers without a gap and then none to the end; where no loss tells more."""
    return (
        s.rows >= LOST_ROWS and s.rows == s.extra.get("total") and s.extra.get("finite", 0.0) >= FILLED_ROWS
    )


def _matters(s: Symptom) -> bool:
    """Whether a scalar is one that has to be finite: columns that are never filled and rates of nothing are
    NaN in many logs.
    """
    name = str(s.peak_tensor).lower()
    kept = any(word in name for word in MUST_BE_FINITE)
    return kept and (s.rows >= 2 or s.extra.get("finite", 0.0) == 0 or "loss" in name)


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
