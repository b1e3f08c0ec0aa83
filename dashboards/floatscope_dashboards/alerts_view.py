"""What the alerts page shows, as plain frozen objects; the server fills them. Times are UTC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from floatscope_dashboards.alert_filters import Asked
from floatscope_dashboards.incidents import AlertLine, Incident


@dataclass(frozen=True)
class RunName:
    """What lists say of a run."""

    run_id: str
    name: str
    project: str


@dataclass(frozen=True)
class Held:
    """The silence that holds an alert's messages back. ends: None until somebody ends it."""

    id: str
    ends: datetime | None
    note: str
    by: str


@dataclass(frozen=True)
class HistoryLine:
    """One line of an alert's history, as stored. by: "engine", or who."""

    time: datetime
    event: str
    by: str
    before: str
    after: str
    note: str


@dataclass(frozen=True)
class Told:
    """One message about the alert. channel: its name. state: pending, sent or dead. due: of the next try."""

    channel: str
    event: str
    state: str
    attempts: int
    created: datetime
    finished: datetime | None
    due: datetime | None
    error: str


@dataclass(frozen=True)
class AlertDetail:
    """One alert with all that is known of it.

    incident: what it belongs to. finding: its JSON. onset_time: when its onset step was trained, None where
    that is not known. rule_title: without the code. further: lines of history that are left out.
    """

    line: AlertLine
    incident: Incident
    finding: Mapping[str, Any]
    finding_state: str
    first_seen: datetime
    last_seen: datetime
    muted_until: datetime | None = None
    onset_time: datetime | None = None
    silence: Held | None = None
    rule_title: str = ""
    history: tuple[HistoryLine, ...] = ()
    further: int = 0
    told: tuple[Told, ...] = ()
    replaced_by: str = ""
    """Id of the alert that explains it now, "" if there is none."""


@dataclass(frozen=True)
class AlertsView:
    """The page. incidents: all there are, unfiltered, worst first. findings: JSON of those that are shown in
    words, by id of the alert. silences: by id of the alert whose messages it holds back. alerts: how many
    there are to group; more than were grouped if `cut`. ever: whether there has been any alert at all.
    """

    asked: Asked
    incidents: tuple[Incident, ...]
    findings: Mapping[str, Mapping[str, Any]]
    runs: Mapping[str, RunName]
    alerts: int
    cut: bool
    ever: bool
    now: datetime
    silences: Mapping[str, Held] = field(default_factory=dict)
    detail: AlertDetail | None = None
    channels: int = 0
    """How many channels are switched on."""
