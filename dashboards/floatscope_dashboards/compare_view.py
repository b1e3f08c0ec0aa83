"""What the comparison of two runs shows, as plain frozen objects: the server fills them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class ComparedRun:
    """One of the two runs. recipe: as people write it.  open_findings: warnings and critical findings that
    have not recovered, None where nothing was judged.  number_findings: those of them that are about number
    formats. headroom: lowest of all tensors and steps seen, in binades.  clipped_pct: largest share of
    clipped values. speeds: name of a measure -> its value; what was not logged is absent.  config: settings
    by dotted name.
    """

    run_id: str
    name: str
    project: str
    recipe: str
    status: str
    health: str
    first_step: int | None
    last_step: int | None
    baseline: str | None = None
    open_findings: int | None = None
    number_findings: int = 0
    headroom: float | None = None
    clipped_pct: float | None = None
    speeds: Mapping[str, float] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)
    config_left_out: int = 0


@dataclass(frozen=True)
class PairNote:
    """Something that speaks against comparing the two. code: see ``compare_words.NOTES``."""

    code: str
    setting: str
    run: str
    baseline: str


@dataclass(frozen=True)
class EvalPair:
    """A logged evaluation at the last step at which both runs have it. run, baseline: as logged."""

    name: str
    step: int
    run: float
    baseline: float


@dataclass(frozen=True)
class PresetChoice:
    """A named set of limits. says: what it asks for, in a sentence."""

    name: str
    says: str


@dataclass(frozen=True)
class AskedLimits:
    """Limits of the address: name in the address -> text, of those that are given.  presets: to choose
    from.
    """

    given: Mapping[str, str] = field(default_factory=dict)
    presets: tuple[PresetChoice, ...] = ()


@dataclass(frozen=True)
class CompareView:
    """Two runs beside each other. document: ``floatscope compare --json`` with the decision under ``go``,
    None if there is nothing to compare; ``why_not`` then says why.  rows: (read, logged) steps with tensor
    statistics of the run, None if they were not looked at.  limits, first, last: as asked.  margin: nats
    that the decision holds the difference against.  evals: evaluations that both runs log, beside those that
    the decision judged.  corrected: parts of the address that could not be used.
    """

    run: ComparedRun
    base: ComparedRun
    document: Mapping[str, Any] | None
    why_not: str
    notes: tuple[PairNote, ...]
    rows: tuple[int, int] | None
    margin: float
    first: int | None
    last: int | None
    corrected: tuple[str, ...]
    now: datetime
    limits: AskedLimits = AskedLimits()
    evals: tuple[EvalPair, ...] = ()


@dataclass(frozen=True)
class Choice:
    """A run to choose. value: its id."""

    run_id: str
    name: str
    project: str
    recipe: str
    last_step: int | None
    health: str
    status: str


@dataclass(frozen=True)
class Suggestion:
    """A pair that is likely meant: a run and the baseline it names."""

    run: Choice
    base: Choice


@dataclass(frozen=True)
class ChooseView:
    """Choosing two runs. run_id, baseline_id: what the address names, "" for nothing.  missing: ids of it
    that no run has.  total: runs in the store, which may be more than ``choices``.
    """

    choices: tuple[Choice, ...]
    suggestions: tuple[Suggestion, ...]
    total: int
    query: str
    run_id: str
    baseline_id: str
    missing: tuple[str, ...]
    same: bool
    corrected: tuple[str, ...]
    now: datetime
