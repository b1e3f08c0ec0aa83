"""What the page of rules and notifications knows of the rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from floatscope_dashboards.channels_view import ChannelsView

EVERY = "*"
"""Project of a setting that holds wherever nothing else is set."""


@dataclass(frozen=True)
class ThresholdView:
    """A number of a rule that may be moved; value, default, lowest and highest in ``unit``."""

    name: str
    unit: str
    value: float
    default: float
    lowest: float
    highest: float
    whole: bool
    meaning: str


@dataclass(frozen=True)
class SettingView:
    """What somebody set for a rule in a project (EVERY: wherever nothing else is set). severity: None as the
    rule says.  thresholds: those that were moved.
    """

    project: str
    enabled: bool
    severity: str | None
    thresholds: Mapping[str, float]
    note: str | None
    updated: datetime
    by: str


@dataclass(frozen=True)
class RuleView:
    """One rule. sections: of its documentation, by heading.  severities: those it can have, mildest first.
    settings: all there are; holds: the one that holds where the reader looks, None: as the rule was written.
    fired, confirmed, denied: alerts of the last days and what people said.  firing: on how many runs now.
    """

    code: str
    name: str
    title: str
    families: tuple[str, ...]
    causes: tuple[str, ...]
    sections: Mapping[str, str]
    needs: tuple[str, ...]
    docs: str
    severities: tuple[str, ...]
    thresholds: tuple[ThresholdView, ...] = ()
    settings: tuple[SettingView, ...] = ()
    holds: SettingView | None = None
    fired: int = 0
    confirmed: int = 0
    denied: int = 0
    firing: int = 0


@dataclass(frozen=True)
class ChangeView:
    """One change of a setting, from the audit log. before, after: as stored, None where nothing was set."""

    moment: datetime
    by: str
    code: str
    project: str
    before: Mapping[str, object] | None
    after: Mapping[str, object] | None
    note: str | None = None


@dataclass(frozen=True)
class RulesView:
    """The whole page. project: where the reader looks, None for every project; strange: asked for and not
    known, so that every project is shown.  days: that ``fired`` counts.  changes: None for readers who may
    not see the audit log.
    """

    rules: tuple[RuleView, ...]
    projects: tuple[str, ...]
    days: int
    now: datetime
    project: str | None = None
    strange: str | None = None
    changes: tuple[ChangeView, ...] | None = None
    told: ChannelsView = field(default_factory=ChannelsView)
