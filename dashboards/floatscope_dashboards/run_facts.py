"""What the run page knows of a run besides its verdict: when and how much was trained, its alerts, a baseline
that would fit, and what happened. The server fills it; what is not known is None or ().
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

OPEN_STATES = ("firing", "acknowledged", "silenced")
"""States of an alert whose fault goes on and that nobody closed."""


@dataclass(frozen=True)
class AlertLine:
    """One line of an alert's history: what happened, by whom ("engine", or a token's name)."""

    time: datetime
    event: str
    by: str
    note: str = ""
    before: str | None = None
    after: str | None = None


@dataclass(frozen=True)
class AlertFacts:
    """The alert of one finding. ``id`` names it in the REST interface, ``finding`` is the finding's id."""

    id: str
    finding: str
    state: str
    severity: str
    summary: str = ""
    onset_step: int | None = None
    since: datetime | None = None
    mute_until: datetime | None = None
    silence_ends: datetime | None = None
    lines: tuple[AlertLine, ...] = ()

    def last(self, event: str) -> AlertLine | None:
        """The newest line of that event."""
        return next((line for line in reversed(self.lines) if line.event == event), None)


@dataclass(frozen=True)
class BaselineMatch:
    """The run that would serve best as this one's baseline.

    same_data: whether both trained on the same batch at the step that was looked at; None if it is not
    logged.
    """

    run_id: str
    name: str
    recipe: str
    last_step: int | None
    same_data: bool | None = None


@dataclass(frozen=True)
class StepEvent:
    """Something that happened to the run at a step: "nonfinite", "resumed", "throttled" or "baseline".

    step: where it began. until: its last step, if it lasted.
    """

    kind: str
    step: int | None = None
    time: datetime | None = None
    until: int | None = None
    by: str = ""


@dataclass(frozen=True)
class RunFacts:
    """All of it. Rules: code -> title, of every rule there is."""

    onset_time: datetime | None = None
    tokens_since_onset: float | None = None
    loss_since_onset: float | None = None
    """Mean loss of the newest stretch minus that before the onset, in nats."""
    pace_s: float | None = None
    """Usual seconds between two batches."""
    alerts: tuple[AlertFacts, ...] = ()
    match: BaselineMatch | None = None
    baseline_name: str = ""
    rules: Mapping[str, str] = field(default_factory=dict)
    events: tuple[StepEvent, ...] = ()
    may_write: bool = False
    may_ingest: bool = False

    def alert_of(self, finding: str) -> AlertFacts | None:
        """The alert of a finding, None without one."""
        return next((item for item in self.alerts if item.finding == finding), None)
