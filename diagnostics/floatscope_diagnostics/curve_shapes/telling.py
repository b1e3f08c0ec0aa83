"""From a symptom of a curve to a finding: what the rules that judge whole curves have in common."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from floatscope_diagnostics.curve_shapes.life import PREFIX
from floatscope_diagnostics.episodes import Symptom
from floatscope_diagnostics.rule import Finding, Symptoms, about

RISE = PREFIX + "rise"  # a rise keeps its identity whether it reads as step, drift, divergence or spike
RISES = tuple(PREFIX + name for name in ("spike", "step", "divergence", "drift"))


def of_curve(s: Symptom, **said: Any) -> Finding:
    """A finding about a shape. said: as for ``about``.

    Rises to act on are identified by their place in their order, others that go on by their segment alone:
    the longer a shape lasts the better its onset is seen, and it moves.
    """
    found = about(s, **said)
    name = RISE if s.signal in RISES else s.signal
    onset = -1 if s.open else s.onset
    if "place" in s.extra:
        onset = -2 - int(s.extra["place"])
    return replace(found, key=(found.detected, onset, f"{name}/{s.peak_tensor}"))


def is_notable(s: Symptom) -> bool:
    """Whether a careful reader would act on it."""
    return s.extra.get("notable", 0.0) > 0


def times(s: Symptom) -> str:
    """How far a loss rose, as words."""
    factor = s.extra.get("factor", 1.0)
    if s.expected is not None and s.expected > 0 and factor >= 1:
        return f"from {s.expected:,.4g} to {s.expected * factor:,.4g}"
    return f"by {s.value:,.4g}"


def covered_by_nonfinite(s: Symptom, symptoms: Symptoms) -> bool:
    """Whether the loss of this segment ends in NaN or Inf right after the shape."""
    return any(
        n.segment == s.segment and n.peak_tensor == "loss" and n.open and n.onset >= s.onset
        for n in symptoms.of(PREFIX + "nonfinite")
    )
