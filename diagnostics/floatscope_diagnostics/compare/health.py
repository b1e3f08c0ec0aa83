"""The verdict of a diagnosis as the decision needs it: what is open, and what can be of the precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from floatscope_diagnostics.rule import FAMILY_OF

CLOSED = ("replaced", "recovered", "resolved")
PRECISION_FAMILIES = ("scale_calibration_blowup", "slow_truncation_drift", "activation", "kernel")
PRECISION_CAUSES = ("master_weight_desync", "loss_scale_collapse")
"""What a number format, its scale or a kernel can bring about. Other causes (data, learning rate, a plateau)
befall both runs of a pair and show in the loss."""


@dataclass(frozen=True)
class Warned:
    """An open warning that can be of the precision. said: with its first step.  remedy: what to do."""

    cause: str
    said: str
    remedy: str = ""


@dataclass(frozen=True)
class Health:
    """A judged run. critical, warnings: what its open findings say, in order of onset.  recovered: those that
    are over.  of_precision: warnings that the precision can be the cause of.  causes: of all open findings.
    tensors_seen: its log holds statistics of tensors; without them no fault of a cast can be found.
    """

    status: str
    critical: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    recovered: tuple[str, ...] = ()
    of_precision: tuple[Warned, ...] = ()
    causes: frozenset[str] = frozenset()
    tensors_seen: bool = True


def health_of(verdict: Mapping[str, Any] | None) -> Health | None:
    """The health in a verdict's JSON (``floatscope.verdict/1``); None where there is none to read."""
    if not isinstance(verdict, Mapping) or not isinstance(verdict.get("findings"), list):
        return None
    if not isinstance(verdict.get("status"), str):
        return None
    found = [f for f in verdict["findings"] if isinstance(f, Mapping)]
    grave = [f for f in found if f.get("severity") in ("critical", "warning")]
    open_ones = [f for f in grave if f.get("state") not in CLOSED]
    warnings = [f for f in open_ones if f["severity"] == "warning"]
    source = verdict.get("source")
    tensors = source.get("tensors") if isinstance(source, Mapping) else None
    return Health(
        status=verdict["status"],
        critical=tuple(_said(f) for f in open_ones if f["severity"] == "critical"),
        warnings=tuple(_said(f) for f in warnings),
        recovered=tuple(_said(f) for f in grave if f.get("state") == "recovered"),
        of_precision=tuple(
            Warned(str(f.get("cause")), _said(f), _remedy(f)) for f in warnings if _can_be_of_precision(f)
        ),
        causes=frozenset(f["cause"] for f in open_ones if isinstance(f.get("cause"), str)),
        tensors_seen=isinstance(tensors, int) and tensors > 0,
    )


def _can_be_of_precision(finding: Mapping[str, Any]) -> bool:
    """By its cause or, where that is not determined, by one of those that are weighed."""
    causes = [finding.get("cause")]
    others = finding.get("alternatives")
    if causes == ["undetermined"] and isinstance(others, list):
        causes += [other.get("cause") for other in others if isinstance(other, Mapping)]
    return any(
        isinstance(cause, str) and (FAMILY_OF.get(cause) in PRECISION_FAMILIES or cause in PRECISION_CAUSES)
        for cause in causes
    )


def _remedy(finding: Mapping[str, Any]) -> str:
    """The first sentence of the remedy."""
    remedy = finding.get("remedy")
    text = remedy.get("text") if isinstance(remedy, Mapping) else None
    return "" if not isinstance(text, str) else text.partition(". ")[0].rstrip(".")


def _said(finding: Mapping[str, Any]) -> str:
    text = str(finding.get("summary") or finding.get("cause") or "a finding").rstrip(".")
    onset = finding.get("onset_step")
    since = f" (since step {onset:,})" if isinstance(onset, int) and f"{onset:,}" not in text else ""
    return text + since
