"""What a diagnosis tells the training loop: the verdict in short, as it stands in answers to batches.

A full verdict can be large; a loop that wants to stop, roll back or tag a checkpoint needs the findings that
count now, and up to which step the run was judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MOST_FINDINGS = 16
_MOST_CHARS = 1024
SEVERITIES = ("info", "warning", "critical")
HEALTHS = ("healthy", "watch", "warning", "critical")


@dataclass(frozen=True)
class BriefFinding:
    """One finding, the fields that a loop or its log can use; None is not known.

    severity: info, warning or critical.  state: raised, confirmed, worsened, recovered or replaced.
    confidence: 0 to 1.  onset_step: first bad step.  rank: where it was seen.
    """

    id: str
    family: str
    cause: str
    severity: str
    state: str
    summary: str
    confidence: float | None = None
    onset_step: int | None = None
    detected_step: int | None = None
    rank: int | None = None
    layer: str | None = None
    tensor: str | None = None

    @property
    def is_alarm(self) -> bool:
        """Whether it is a warning or worse that still stands."""
        return self.severity in ("warning", "critical") and self.state not in ("recovered", "replaced")

    def to_json(self) -> dict[str, Any]:
        """The object, without what is not known."""
        return {key: value for key, value in vars(self).items() if value is not None}

    @classmethod
    def from_json(cls, value: object) -> BriefFinding | None:
        """Reads a finding of a verdict or of an answer; None where it is none."""
        if not isinstance(value, Mapping):
            return None
        texts = {key: value.get(key) for key in ("id", "family", "cause", "severity", "state", "summary")}
        if not all(isinstance(text, str) for text in texts.values()) or texts["severity"] not in SEVERITIES:
            return None
        return cls(
            **{key: str(text)[:_MOST_CHARS] for key, text in texts.items()},
            confidence=_share(value.get("confidence")),
            onset_step=_whole(value.get("onset_step")),
            detected_step=_whole(value.get("detected_step")),
            rank=_whole(value.get("rank")),
            layer=_text(value.get("layer")),
            tensor=_text(value.get("tensor")),
        )


@dataclass(frozen=True)
class Judgement:
    """A verdict in short.

    status: healthy, watch, warning or critical.  judged_step: last step that was judged, None before the
    first. last_clean_step: last step before the earliest warning or critical finding.
    findings: those not replaced, the worst first, at most MOST_FINDINGS.
    """

    status: str
    judged_step: int | None
    last_clean_step: int | None
    findings: tuple[BriefFinding, ...] = ()

    @classmethod
    def of_verdict(cls, verdict: Mapping[str, Any], *, judged_step: int | None) -> Judgement:
        """The short form of a verdict document (``floatscope.verdict/1``)."""
        findings = verdict.get("findings")
        return cls(
            status=str(verdict.get("status")),
            judged_step=judged_step,
            last_clean_step=_whole(verdict.get("last_clean_step")),
            findings=_worst_first(findings if isinstance(findings, list | tuple) else ()),
        )

    def to_json(self) -> dict[str, Any]:
        """The object of an answer."""
        return {
            "status": self.status,
            "judged_step": self.judged_step,
            "last_clean_step": self.last_clean_step,
            "findings": [finding.to_json() for finding in self.findings],
        }

    @classmethod
    def from_json(cls, value: object) -> Judgement | None:
        """Reads the object of an answer; None where it is none: answers come from outside."""
        if not isinstance(value, Mapping) or value.get("status") not in HEALTHS:
            return None
        return cls.of_verdict(value, judged_step=_whole(value.get("judged_step")))


def _worst_first(values: Any) -> tuple[BriefFinding, ...]:
    found = [finding for value in values if (finding := BriefFinding.from_json(value)) is not None]
    kept = [finding for finding in found if finding.state != "replaced"]
    kept.sort(key=lambda finding: (not finding.is_alarm, -SEVERITIES.index(finding.severity)))
    return tuple(kept[:MOST_FINDINGS])


def _whole(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _share(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 <= value <= 1 else None


def _text(value: object) -> str | None:
    return value[:_MOST_CHARS] if isinstance(value, str) else None
