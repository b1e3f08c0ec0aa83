"""What a diagnosis tells the training loop: the verdict in short, as it stands in answers to batches.

A full verdict can be large; a loop that wants to stop, roll back or tag a checkpoint needs the findings that
count now, up to which step the run was judged, and which steps were trained again since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

MOST_FINDINGS = 16
SEVERITIES = ("info", "warning", "critical")
HEALTHS = ("healthy", "watch", "warning", "critical")
_TEXT_CHARS = {"summary": 600, "remedy": 400}
_NAME_CHARS = 1024  # the longest name of a layer or tensor


@dataclass(frozen=True)
class BriefFinding:
    """One finding, the fields that a loop or its log can use; None is not known.

    severity: info, warning or critical.  state: raised, confirmed, worsened, recovered or replaced.
    confidence: 0 to 1.  onset_step: first bad step; onset_first: the first that could be, where not every
    step shows it.  resolved_step: first good step again.  rank: where it was seen.  segment: which pass over
    these steps, from 0.  rolled_back: the run has gone back to before it and trains those steps again.
    remedy: what to do.
    """

    id: str
    family: str
    cause: str
    severity: str
    state: str
    summary: str
    confidence: float | None = None
    onset_step: int | None = None
    onset_first: int | None = None
    detected_step: int | None = None
    resolved_step: int | None = None
    rank: int | None = None
    layer: str | None = None
    tensor: str | None = None
    remedy: str | None = None
    segment: int = 0
    rolled_back: bool = False

    @property
    def is_alarm(self) -> bool:
        """Whether it is a warning or worse that still stands."""
        return self.counts and self.state != "recovered"

    @property
    def counts(self) -> bool:
        """Whether it is a warning or worse of the steps that led here, also one that has recovered."""
        return self.severity in ("warning", "critical") and self.state != "replaced" and not self.rolled_back

    @property
    def begins(self) -> int | None:
        """First step that can be bad; None where that is not known."""
        return self.onset_step if self.onset_first is None else self.onset_first

    def taints(self, step: int) -> bool:
        """Whether a checkpoint after this step may carry the fault."""
        if not self.counts or (self.begins is not None and step < self.begins):
            return False
        return self.state != "recovered" or (self.resolved_step is not None and step < self.resolved_step)

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
        window, remedy = value.get("onset_window"), value.get("remedy")
        return cls(
            **{key: str(text)[: _TEXT_CHARS.get(key, _NAME_CHARS)] for key, text in texts.items()},
            confidence=_share(value.get("confidence")),
            onset_step=_whole(value.get("onset_step")),
            onset_first=_whole(
                window[0] if isinstance(window, list) and window else value.get("onset_first")
            ),
            detected_step=_whole(value.get("detected_step")),
            resolved_step=_whole(value.get("resolved_step")),
            rank=_whole(value.get("rank")),
            layer=_text(value.get("layer")),
            tensor=_text(value.get("tensor")),
            remedy=_text(
                remedy.get("text") if isinstance(remedy, Mapping) else remedy, _TEXT_CHARS["remedy"]
            ),
            segment=_whole(value.get("segment")) or 0,
            rolled_back=value.get("rolled_back") is True,
        )


@dataclass(frozen=True)
class Judgement:
    """A verdict in short.

    status: healthy, watch, warning or critical.  judged_step: last step that was judged, None before the
    first. segment: the one it belongs to.  last_clean_step: last step before the earliest warning or critical
    finding that stands, the judged one without any, None where there is none.
    findings: those not replaced, the worst first, at most MOST_FINDINGS.  summary: one sentence.
    """

    status: str
    judged_step: int | None
    last_clean_step: int | None
    findings: tuple[BriefFinding, ...] = ()
    segment: int = 0
    summary: str = ""

    @classmethod
    def of_verdict(
        cls, verdict: Mapping[str, Any], *, judged_step: int | None = None, segment: int | None = None
    ) -> Judgement:
        """The short form of a verdict document (``floatscope.verdict/1``).

        judged_step, segment: by default what the document says of its source.
        """
        source = verdict.get("source")
        source = source if isinstance(source, Mapping) else {}
        if judged_step is None:
            judged_step = _whole(source.get("judged_step", source.get("last_step")))
        starts = _starts(source.get("segments"))
        found = findings_of(verdict)
        begun = [finding.begins for finding in found if finding.is_alarm]
        clean: int | None = judged_step
        if begun:
            clean = None if None in begun else min(step for step in begun if step is not None) - 1
        return cls(
            status=str(verdict.get("status")),
            judged_step=judged_step,
            last_clean_step=_whole(clean),
            findings=_worst_first(found),
            segment=max(starts, default=0) if segment is None else segment,
            summary=_text(verdict.get("summary"), _TEXT_CHARS["summary"]) or "",
        )

    def is_clean(self, step: int, *, settled: int = 0) -> bool | None:
        """False where a fault may have begun at or before this step; True if ``settled`` steps beyond it were
        judged too; else None.
        """
        if any(finding.taints(step) for finding in self.findings):
            return False
        if self.last_clean_step is None or self.last_clean_step < min(step, self.judged_step or 0):
            return False if any(finding.is_alarm for finding in self.findings) else None
        return True if self.judged_step is not None and self.judged_step >= step + settled else None

    def to_json(self) -> dict[str, Any]:
        """The object of an answer: at most some 100 kB, without findings 150 bytes."""
        return {
            "status": self.status,
            "judged_step": self.judged_step,
            "segment": self.segment,
            "last_clean_step": self.last_clean_step,
            "summary": self.summary,
            "findings": [finding.to_json() for finding in self.findings],
        }

    @classmethod
    def from_json(cls, value: object) -> Judgement | None:
        """Reads the object of an answer; None where it is none: answers come from outside."""
        if not isinstance(value, Mapping) or value.get("status") not in HEALTHS:
            return None
        return cls(
            status=str(value["status"]),
            judged_step=_whole(value.get("judged_step")),
            last_clean_step=_whole(value.get("last_clean_step")),
            findings=_worst_first(_findings(value.get("findings"))),
            segment=_whole(value.get("segment")) or 0,
            summary=_text(value.get("summary"), _TEXT_CHARS["summary"]) or "",
        )


def findings_of(verdict: Mapping[str, Any]) -> list[BriefFinding]:
    """All findings of a verdict document, those that the run has gone back over marked."""
    source = verdict.get("source")
    starts = _starts(source.get("segments") if isinstance(source, Mapping) else None)
    return [_placed(finding, starts) for finding in _findings(verdict.get("findings"))]


def _findings(values: object) -> list[BriefFinding]:
    found = values if isinstance(values, list | tuple) else ()
    return [finding for value in found if (finding := BriefFinding.from_json(value)) is not None]


def _worst_first(found: Sequence[BriefFinding]) -> tuple[BriefFinding, ...]:
    kept = [finding for finding in found if finding.state != "replaced"]
    kept.sort(key=lambda finding: (not finding.is_alarm, -SEVERITIES.index(finding.severity)))
    return tuple(kept[:MOST_FINDINGS])


def _starts(values: object) -> dict[int, int]:
    """First step of each segment, as a verdict's source lists them."""
    out: dict[int, int] = {}
    for value in values if isinstance(values, list) else ():
        if isinstance(value, Mapping):
            number, first = _whole(value.get("segment")), _whole(value.get("first_step"))
            if number is not None and first is not None:
                out[number] = first
    return out


def _placed(finding: BriefFinding, starts: Mapping[int, int]) -> BriefFinding:
    """The finding, marked where a later segment begins at or before its onset."""
    onset = finding.onset_step
    if onset is None or not any(n > finding.segment and first <= onset for n, first in starts.items()):
        return finding
    return replace(finding, rolled_back=True)


def _whole(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _share(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 <= value <= 1 else None


def _text(value: object, most: int = _NAME_CHARS) -> str | None:
    return value[:most] if isinstance(value, str) else None
