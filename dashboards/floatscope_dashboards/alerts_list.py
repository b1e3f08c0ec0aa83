"""The list of the alerts page: sections by state, so many incidents of each, and counts of the filters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from floatscope_dashboards.alert_filters import Asked
from floatscope_dashboards.family_words import FAMILIES
from floatscope_dashboards.incidents import SEVERITIES, STATES, Incident, counts

UNFOLDED_ALERTS = 20
"""Alerts of an incident that are listed when it is unfolded."""
MOST_CHOICES = 100
"""Runs that the filter offers, those with most incidents."""


@dataclass(frozen=True)
class Section:
    """Incidents of one state. total: how many there are, of which `incidents` are shown."""

    state: str
    incidents: tuple[Incident, ...]
    total: int


@dataclass(frozen=True)
class Listing:
    """What the filters let through, by state, worst first."""

    sections: tuple[Section, ...]

    def rows(self) -> tuple[Incident, ...]:
        return tuple(incident for section in self.sections for incident in section.incidents)

    @property
    def total(self) -> int:
        return sum(section.total for section in self.sections)


@dataclass(frozen=True)
class Facets:
    """Filter value -> incidents, in the order in which they are offered."""

    states: Mapping[str, int]
    severities: Mapping[str, int]
    families: Mapping[str, int]
    runs: Mapping[str, int]
    rules: Mapping[str, int]
    mine: int


def listing(incidents: tuple[Incident, ...], asked: Asked) -> Listing:
    """The sections that have something."""
    by_state: dict[str, list[Incident]] = {state: [] for state in STATES}
    for incident in incidents:
        if asked.wanted.takes(incident):
            by_state.setdefault(incident.state, []).append(incident)
    return Listing(
        tuple(Section(state, tuple(its[: asked.show]), len(its)) for state, its in by_state.items() if its)
    )


def facets(incidents: tuple[Incident, ...], asked: Asked) -> Facets:
    """Each filter's values with what choosing them would show. Families and rules: those there are, and those
    chosen.
    """
    wanted, found = asked.wanted, counts(incidents, asked.wanted)
    families, runs, rules = found["family"], found["run"], found["rule"]
    there = frozenset().union(wanted.families, *(incident.families for incident in incidents))
    most = sorted(runs, key=lambda run: (-runs[run], run))[:MOST_CHOICES]
    return Facets(
        states={state: found["state"].get(state, 0) for state in STATES},
        severities={severity: found["severity"].get(severity, 0) for severity in SEVERITIES[:2]},
        families={family: families.get(family, 0) for family in FAMILIES if family in there},
        runs={run: runs.get(run, 0) for run in dict.fromkeys([*most, *_given(wanted.run)])},
        rules={rule: rules.get(rule, 0) for rule in sorted({*rules, *_given(wanted.rule)})},
        mine=found["mine"].get(wanted.reader, 0),
    )


def _given(value: str) -> tuple[str, ...]:
    return (value,) if value else ()
