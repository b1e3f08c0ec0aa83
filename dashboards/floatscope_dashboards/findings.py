"""A verdict's findings as typed objects, read leniently: the page comes up whatever an older engine
stored."""

from __future__ import annotations

import gettext
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from floatscope_dashboards.engine_words import InEnglish
from floatscope_dashboards.say import ENGLISH, Say, later
from floatscope_dashboards.wording import (
    CAUSES,
    FRAMEWORKS,
    KINDS,
    SEVERITY_ORDER,
    SIGNALS,
    as_float,
    as_int,
    as_text,
    cause_label,
    number_text,
    sentence_case,
    signal_of,
    with_unit,
)

CERTAIN_FROM = 0.6
"""Below this confidence the banner names two candidates and the deciding test, never an instruction."""
IN_ENGLISH = Say(ENGLISH, gettext.NullTranslations(), {})
NO_SIGNAL, MISSING = later("Signal"), later("missing")
OTHER_SETTINGS_ORDER = ("transformer_engine", "megatron", "torchao", "deepspeed", "pytorch")


@dataclass(frozen=True)
class Evidence:
    """One number that speaks for a finding, in words."""

    signal: str
    label: str
    tensor: str
    step: int | None
    value: str
    expected: str


@dataclass(frozen=True)
class Alternative:
    """Another explanation that was weighed."""

    label: str
    confidence: float
    against: str


@dataclass(frozen=True)
class Setting:
    """A change for one framework, to be copied as it is."""

    framework: str
    text: str

    @property
    def is_code(self) -> bool:
        """Whether there is something to copy; else it is a sentence."""
        return is_code(self.text)


@dataclass(frozen=True)
class Finding:
    """One finding of the verdict; what it did not say is None, "" or ()."""

    key: str
    rule: str
    cause: str
    kind: str
    severity: str
    state: str
    confidence: float | None
    onset_step: int | None
    onset_window: tuple[int, int] | None
    detected_step: int | None
    resolved_step: int | None
    rank: int | None
    layer: str
    tensor: str
    order: str
    affected_tensors: int | None
    summary: str
    evidence: tuple[Evidence, ...]
    alternatives: tuple[Alternative, ...]
    remedy: tuple[str, ...]
    settings: tuple[Setting, ...]
    decisive_test: str
    confidence_basis: str = ""
    log_next: tuple[str, ...] = ()
    label: str = ""
    """Cause and kind in words."""
    composed: str = ""
    """The finding in short, where its summary could not be translated; else ""."""

    @property
    def title(self) -> str:
        """A heading: the summary without its closing full stop, or composed from its parts where that could
        not be translated; the cause when there is no summary.
        """
        return self.composed or self.summary.rstrip().removesuffix(".").removesuffix("。") or self.label

    @property
    def recovered(self) -> bool:
        """Back in range, without being replaced by another finding."""
        return self.state == "recovered" or (self.state == "" and self.resolved_step is not None)

    @property
    def uncertain(self) -> bool:
        """Too unsure for an instruction."""
        return self.cause == "undetermined" or (
            self.confidence is not None and self.confidence < CERTAIN_FROM
        )


def read_findings(verdict: Mapping[str, Any], say: Say = IN_ENGLISH) -> tuple[Finding, ...]:
    """All findings that were not replaced by a later one, worst first (severity, confidence, onset), in the
    language of `say`.
    """
    found = [_finding(item, number, say) for number, item in enumerate(_dicts(verdict.get("findings")))]
    return tuple(sorted((item for item in found if item.state != "replaced"), key=_worst_first))


def open_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Warnings and critical findings that have not recovered."""
    return tuple(item for item in findings if item.severity in ("critical", "warning") and not item.recovered)


def _worst_first(finding: Finding) -> tuple[int, int, float, int]:
    return (
        1 if finding.recovered else 0,
        SEVERITY_ORDER.get(finding.severity, 9),
        -(finding.confidence or 0.0),
        finding.onset_step if finding.onset_step is not None else 1 << 62,
    )


def _label(cause: str, kind: str, say: Say) -> str:
    words = say(KINDS[kind]) if kind in KINDS else kind.replace("_", " ")
    label = say(cause_label(cause))
    return say("{cause}: {kind}", cause=label, kind=words) if words else label


def _composed(item: Mapping[str, Any], label: str, say: Say) -> str:
    """Cause, place and step; "" where the engine's own sentence can be shown, which says more."""
    summary = as_text(item.get("summary"))
    if say.language == ENGLISH or (summary and not isinstance(say.engine(summary), InEnglish)):
        return ""
    where = as_text(item.get("tensor")) or as_text(item.get("layer"))
    onset = as_int(item.get("onset_step"))
    if where and onset is not None:
        return say("{what} in {where}, since step {step}", what=label, where=where, step=say.step(onset))
    if where:
        return say("{what} in {where}", what=label, where=where)
    return label if onset is None else say("{what}, since step {step}", what=label, step=say.step(onset))


def _finding(item: Mapping[str, Any], number: int, say: Say) -> Finding:
    remedy = item.get("remedy")
    remedy = remedy if isinstance(remedy, Mapping) else {}
    label = _label(as_text(item.get("cause")) or "undetermined", as_text(item.get("kind")), say)
    return Finding(
        key=as_text(item.get("id")) or f"finding-{number}",
        rule=as_text(item.get("rule")),
        cause=as_text(item.get("cause")) or "undetermined",
        kind=as_text(item.get("kind")),
        severity=as_text(item.get("severity")) or "info",
        state=as_text(item.get("state")),
        confidence=_share(item.get("confidence")),
        onset_step=as_int(item.get("onset_step")),
        onset_window=_window(item.get("onset_window")),
        detected_step=as_int(item.get("detected_step")),
        resolved_step=as_int(item.get("resolved_step")),
        rank=as_int(item.get("rank")),
        layer=as_text(item.get("layer")),
        tensor=as_text(item.get("tensor")),
        order=as_text(item.get("order")),
        affected_tensors=as_int(item.get("affected_tensors")),
        summary=say.engine(as_text(item.get("summary"))),
        evidence=tuple(_evidence(entry, say) for entry in _dicts(item.get("evidence"))),
        alternatives=_alternatives(item.get("alternatives"), say),
        remedy=_sentences(say.engine(as_text(remedy.get("text")))),
        settings=_settings(remedy.get("settings"), say),
        decisive_test=say.engine(as_text(item.get("decisive_test"))),
        confidence_basis=say.engine(as_text(item.get("confidence_basis"))),
        log_next=tuple(
            say.engine(text) for wish in _dicts(item.get("log_next")) if (text := as_text(wish.get("text")))
        ),
        label=label,
        composed=_composed(item, label, say),
    )


def _evidence(item: Mapping[str, Any], say: Say) -> Evidence:
    name = as_text(item.get("signal"))
    signal = signal_of(name)
    raw = item.get("value")
    number = as_float(raw)
    if number is not None:
        value = with_unit(number_text(number), say(signal.unit) if math.isfinite(number) else "")
    else:
        value = raw if isinstance(raw, str) else say(MISSING) if raw is None else str(raw)
    expected = item.get("expected")
    expected_number = as_float(expected)
    if expected_number is not None:
        expected = with_unit(number_text(expected_number), say(signal.unit))
    return Evidence(
        signal=name,
        label=say(signal.label) if name in SIGNALS else say.engine(signal.label) or say(NO_SIGNAL),
        tensor=as_text(item.get("tensor")),
        step=as_int(item.get("step")),
        value=value,
        expected=say.engine(as_text(expected)),
    )


def _alternatives(value: object, say: Say) -> tuple[Alternative, ...]:
    found = [
        Alternative(
            label=say(cause_label(as_text(item.get("cause"))) or CAUSES["undetermined"]),
            confidence=_share(item.get("confidence")) or 0.0,
            against=say.engine(as_text(item.get("against"))),
        )
        for item in _dicts(value)
    ]
    return tuple(sorted(found, key=lambda item: -item.confidence))


def _settings(value: object, say: Say) -> tuple[Setting, ...]:
    if not isinstance(value, Mapping):
        return ()
    known = [name for name in OTHER_SETTINGS_ORDER if name in value]
    names = known + sorted(str(name) for name in value if name not in known)
    found = [(name, as_text(value.get(name))) for name in names]
    return tuple(
        Setting(say(FRAMEWORKS.get(name) or sentence_case(name)), text if is_code(text) else say.engine(text))
        for name, text in found
        if text
    )


def is_code(text: str) -> bool:
    """Whether a setting is to be pasted, not read."""
    return any(sign in text for sign in ("(", "=", "--", "_"))


def _sentences(text: str) -> tuple[str, ...]:
    """A remedy as numbered actions: one per line when it has lines, else one per sentence."""
    if "。" in text:
        return tuple(f"{part}。" for part in text.split("。") if part)
    if isinstance(text, InEnglish):
        return tuple(InEnglish(part) for part in _sentences(str(text)))
    lines = [line.strip().lstrip("0123456789.)- ").strip() for line in text.splitlines()]
    lines = [line for line in lines if line]
    if len(lines) != 1:
        return tuple(lines)
    parts = [part.strip() for part in lines[0].replace("; then ", ". ").split(". ")]
    return tuple(part if part.endswith((".", "!", "?")) else part + "." for part in parts if part)


def _share(value: object) -> float | None:
    """A confidence in 0 to 1; None when there is none."""
    number = as_float(value)
    return None if number is None or not math.isfinite(number) else min(max(number, 0.0), 1.0)


def _window(value: object) -> tuple[int, int] | None:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        return None
    low, high = as_int(value[0]), as_int(value[1])
    return None if low is None or high is None else (low, high)


def _dicts(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, (list, tuple)) else []
