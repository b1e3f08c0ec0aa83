"""Alerts merged into incidents: what began together in one run is one thing to look at, not fourteen.

Alerts of a run (of one segment of it: going back to a checkpoint begins a new one) are taken in the order of
their onset. An alert belongs to an incident that is there if its onset lies

- at most `NEAR_STEPS` after the last onset of the incident: a fault and what follows from it at once; or
- at most `SPREAD_STEPS` after the last onset of the same family in it: a fault that spreads;

and at most `LONGEST_STEPS` after the incident's first onset. Alerts that name no onset are one incident for
each family. As in a message, the worst alert leads, and of those the oldest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

NEAR_STEPS = 100
SPREAD_STEPS = 1_000
LONGEST_STEPS = 5_000
STATES = ("firing", "acknowledged", "recovered", "silenced", "resolved")
"""In the order in which the page shows them."""
SEVERITIES = ("critical", "warning", "info")
_SHOWN = {state: place for place, state in enumerate(STATES)}
_WORST = {severity: place for place, severity in enumerate(SEVERITIES)}
_PRESSING = {
    state: place
    for place, state in enumerate(("firing", "acknowledged", "silenced", "recovered", "resolved"))
}


@dataclass(frozen=True)
class AlertLine:
    """What grouping and filtering ask of an alert.

    number: order of creation. run: run_id. onset: step, None if the finding names none. began: when it was
    made. owner: who acknowledged or closed it last, "" for nobody.
    """

    number: int
    id: str
    run: str
    segment: int
    onset: int | None
    severity: str
    state: str
    family: str
    rule: str
    began: datetime
    owner: str = ""


@dataclass(frozen=True)
class Incident:
    """Alerts of one run that began together, in the order of their onset.

    key: the id of its first alert, which stays while the incident grows. lead: the alert that speaks for it:
    of those that press most the worst, then the oldest. owners: who has it, of the alerts in its state,
    without repeats.
    """

    alerts: tuple[AlertLine, ...]
    key: str
    lead: AlertLine
    began: datetime
    owners: tuple[str, ...]
    families: frozenset[str]
    rules: frozenset[str]

    @classmethod
    def of(cls, alerts: Sequence[AlertLine]) -> Incident:
        """The incident that these alerts are; at least one."""
        lead = min(alerts, key=_leading)
        return cls(
            alerts=tuple(alerts),
            key=min(alerts, key=lambda alert: alert.number).id,
            lead=lead,
            began=min(alert.began for alert in alerts),
            owners=tuple(dict.fromkeys(a.owner for a in alerts if a.owner and a.state == lead.state)),
            families=frozenset(alert.family for alert in alerts),
            rules=frozenset(alert.rule for alert in alerts if alert.rule),
        )

    @property
    def state(self) -> str:
        """The state of the alert that presses most."""
        return self.lead.state

    @property
    def severity(self) -> str:
        return self.lead.severity

    @property
    def run(self) -> str:
        return self.lead.run

    def has(self, alert_id: str) -> bool:
        return any(alert.id == alert_id for alert in self.alerts)


def _leading(alert: AlertLine) -> tuple[int, int, datetime, int]:
    return (_place(alert.state, _PRESSING), _place(alert.severity, _WORST), alert.began, alert.number)


@dataclass
class _Growing:
    """An incident while its alerts are gathered."""

    first: int
    last: int
    last_of: dict[str, int]
    alerts: list[AlertLine] = field(default_factory=list)

    def spreads_to(self, alert: AlertLine, onset: int) -> bool:
        last = self.last_of.get(alert.family)
        return last is not None and onset - last <= SPREAD_STEPS and onset - self.first <= LONGEST_STEPS

    def is_near(self, onset: int) -> bool:
        return onset - self.last <= NEAR_STEPS and onset - self.first <= LONGEST_STEPS

    def take(self, alert: AlertLine, onset: int) -> None:
        self.alerts.append(alert)
        self.last = self.last_of[alert.family] = onset


def grouped(alerts: Iterable[AlertLine]) -> tuple[Incident, ...]:
    """The incidents these alerts make, worst first, then the newest."""
    by_stretch: dict[tuple[str, int], list[AlertLine]] = {}
    for alert in alerts:
        by_stretch.setdefault((alert.run, alert.segment), []).append(alert)
    found = [incident for its in by_stretch.values() for incident in _of_stretch(its)]
    return tuple(sorted(found, key=_worst_first))


def _worst_first(incident: Incident) -> tuple[int, int, float, int]:
    return (
        _place(incident.state, _SHOWN),
        _place(incident.severity, _WORST),
        -incident.began.timestamp(),
        -incident.lead.number,
    )


def _of_stretch(alerts: Sequence[AlertLine]) -> list[Incident]:
    timeless: dict[str, list[AlertLine]] = {}
    done: list[_Growing] = []
    growing: list[_Growing] = []
    for alert in sorted(alerts, key=lambda one: (one.onset is None, one.onset or 0, one.number)):
        if alert.onset is None:
            timeless.setdefault(alert.family, []).append(alert)
            continue
        onset = alert.onset
        done += [one for one in growing if onset - one.last > SPREAD_STEPS]
        growing = [one for one in growing if onset - one.last <= SPREAD_STEPS]
        home = next((one for one in growing if one.spreads_to(alert, onset)), None)
        home = home or next((one for one in growing if one.is_near(onset)), None)
        if home is None:
            home = _Growing(onset, onset, {})
            growing.append(home)
        home.take(alert, onset)
    every = [one.alerts for one in (*done, *growing)] + list(timeless.values())
    return [Incident.of(its) for its in every]


@dataclass(frozen=True)
class Wanted:
    """Which incidents a reader wants to see; empty: all. run: run_id. mine: those that `reader` has."""

    states: frozenset[str] = frozenset()
    severities: frozenset[str] = frozenset()
    families: frozenset[str] = frozenset()
    run: str = ""
    rule: str = ""
    mine: bool = False
    reader: str = ""

    @property
    def is_all(self) -> bool:
        return not (self.states or self.severities or self.families or self.run or self.rule or self.mine)

    def takes(self, incident: Incident) -> bool:
        """Whether the incident is wanted."""
        return not self.against(incident)

    def against(self, incident: Incident) -> list[str]:
        """The filters that do not let the incident through."""
        if self.is_all:
            return []
        refused = {
            "state": self.states and incident.state not in self.states,
            "severity": self.severities and incident.severity not in self.severities,
            "family": self.families and not self.families & incident.families,
            "run": self.run and incident.run != self.run,
            "rule": self.rule and self.rule not in incident.rules,
            "mine": self.mine and self.reader not in incident.owners,
        }
        return [name for name, is_against in refused.items() if is_against]


FILTERS = ("state", "severity", "family", "run", "rule", "mine")


def counts(incidents: Collection[Incident], wanted: Wanted) -> Mapping[str, Mapping[str, int]]:
    """Filter -> value -> incidents that choosing it would show: those that the other filters let through."""
    through: dict[str, list[Incident]] = {name: [] for name in FILTERS}
    every: list[Incident] = []
    for incident in incidents:
        against = wanted.against(incident)
        if not against:
            every.append(incident)
        elif len(against) == 1:
            through[against[0]].append(incident)
    return {name: Counter(_values((*every, *its), name)) for name, its in through.items()}


def _values(incidents: Iterable[Incident], name: str) -> Iterable[str]:
    match name:
        case "state":
            return (incident.state for incident in incidents)
        case "severity":
            return (incident.severity for incident in incidents)
        case "run":
            return (incident.run for incident in incidents)
        case "family":
            return (family for incident in incidents for family in incident.families)
        case "mine":
            return (owner for incident in incidents for owner in incident.owners)
    return (rule for incident in incidents for rule in incident.rules)


def _place(value: str, order: Mapping[str, int]) -> int:
    return order.get(value, len(order))
