"""The verdict: the JSON of a diagnosis, ``floatscope.verdict/1``."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from floatscope_diagnostics.calibration import STATED
from floatscope_diagnostics.rule import FAMILY_OF, SEVERITIES, Finding

SCHEMA = "floatscope.verdict/1"
STATUSES = ("healthy", "watch", "warning", "critical")


@dataclass(frozen=True)
class Source:
    """What was judged, and how it was understood.

    mapping: (name in the log, our name) where they differ.  first_skipped: the first line that was not
    understood, and why.  judged_step: last step that all ranks have shown, or that was judged without one
    that lags.  segments: (number, first step) of each; a later one replaces what an earlier one did from its
    first step on.
    """

    path: str | None = None
    format: str = "floatscope"
    steps: int = 0
    first_step: int | None = None
    last_step: int | None = None
    judged_step: int | None = None
    segments: tuple[tuple[int, int], ...] = ()
    scalars: tuple[str, ...] = ()
    tensors: int = 0
    mapping: tuple[tuple[str, str], ...] = ()
    skipped_lines: int = 0
    first_skipped: str | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "format": self.format,
            "runs": 1,
            "steps": self.steps,
            "first_step": self.first_step,
            "last_step": self.last_step,
            "judged_step": self.judged_step,
            "segments": [{"segment": number, "first_step": step} for number, step in self.segments],
            "scalars": list(self.scalars),
            "tensors": self.tensors,
            "mapping": dict(self.mapping),
            "skipped_lines": self.skipped_lines,
            "first_skipped": self.first_skipped,
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class Judged:
    """A finding with its identity and state among the others."""

    id: str
    finding: Finding
    state: str = "raised"
    replaced_by: str | None = None

    def to_json(self) -> dict[str, Any]:
        f = self.finding
        return {
            "id": self.id,
            "state": self.state,
            "replaced_by": self.replaced_by,
            "family": FAMILY_OF[f.cause],
            "cause": f.cause,
            "kind": f.kind,
            "symptom": f.symptom,
            "severity": f.severity,
            "confidence": round(f.confidence, 2),
            "confidence_basis": f.basis,
            "onset_step": f.onset,
            "onset_window": [
                f.onset if f.onset_first is None else f.onset_first,
                f.onset if f.onset_last is None else f.onset_last,
            ],
            "detected_step": f.detected,
            "resolved_step": f.resolved,
            "rank": f.rank if f.rank is None or f.rank >= 0 else None,
            "segment": f.segment,
            "layer": f.layer,
            "tensor": f.tensor,
            "order": f.order,
            "affected_tensors": max(f.affected, len(f.tensors)),
            "summary": f.summary,
            "evidence": [e.to_json() for e in f.evidence],
            "alternatives": [a.to_json() for a in f.alternatives],
            "remedy": f.remedy.to_json(),
            "decisive_test": f.decisive_test,
            "log_next": [w.to_json() for w in f.log_next],
            "rule": f.rule,
        }


@dataclass(frozen=True)
class Verdict:
    """The state after the last step judged. confidence_basis: what the confidences of its alarms rest on.
    rule_settings: what was set for rules, by code; in the document only if there is any.
    """

    source: Source
    status: str
    summary: str
    last_clean_step: int | None
    confidence_basis: str = STATED
    findings: tuple[Judged, ...] = ()
    not_checked: tuple[Mapping[str, Any], ...] = field(default=())
    rule_settings: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The document of the design, with non-finite numbers as strings."""
        return plain_object(
            {
                "schema": SCHEMA,
                "source": self.source.to_json(),
                "status": self.status,
                "summary": self.summary,
                "last_clean_step": self.last_clean_step,
                "confidence_basis": self.confidence_basis,
                "findings": [j.to_json() for j in self.findings],
                "not_checked": [dict(n) for n in self.not_checked],
                **({"rule_settings": dict(self.rule_settings)} if self.rule_settings else {}),
            }
        )


def finding_id(run: str, segment: int, onset: int, signal: str) -> str:
    """Stable identity of an incident: hash of run, segment, onset step and the first signal at creation."""
    return hashlib.sha256(f"{run}\0{segment}\0{onset}\0{signal}".encode()).hexdigest()[:16]


def status_of(findings: tuple[Judged, ...], *, live: bool) -> str:
    """Worst severity of the findings that count: not replaced, and on live runs not recovered."""
    worst = -1
    for j in findings:
        if j.state == "replaced" or (live and j.state == "recovered"):
            continue
        worst = max(worst, SEVERITIES.index(j.finding.severity))
    return STATUSES[worst + 1]


def plain_object(value: dict[str, Any]) -> dict[str, Any]:
    """The same object with every non-finite float as the string the protocol has for it."""
    return {k: _plain(v) for k, v in value.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return value
