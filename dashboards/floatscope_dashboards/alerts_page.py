"""The alerts page: what needs someone, by state, with one alert in detail beside the list."""

from __future__ import annotations

from dataclasses import dataclass

from floatscope_dashboards.alert_detail import AlertWords, DetailWords, alert_words, detail_words
from floatscope_dashboards.alert_words import (
    SEVERITY_SIGNS,
    STATE_SIGNS,
    StateSign,
    finding_of,
    ids_of,
    severity_sign,
    state_sign,
    title_of,
    who_has,
)
from floatscope_dashboards.alerts_list import UNFOLDED_ALERTS, Section, facets, listing
from floatscope_dashboards.alerts_view import AlertsView, RunName
from floatscope_dashboards.family_words import FAMILIES
from floatscope_dashboards.incidents import Incident
from floatscope_dashboards.page import Page
from floatscope_dashboards.say import Say
from floatscope_dashboards.wording import cause_label


@dataclass(frozen=True)
class RowWords:
    """One incident as a line of the list. ids: its alerts, each with the letter of its state."""

    key: str
    lead: str
    href: str
    unfold_href: str
    is_open: bool
    is_unfolded: bool
    severity: tuple[str, str, str]
    state: StateSign
    state_name: str
    title: str
    run: RunName
    onset: int | None
    place: str
    cause: str
    cause_word: str
    family: str
    family_word: str
    count: int
    who: str
    age: str
    began: str
    ids: str
    alerts: tuple[AlertWords, ...]
    more_alerts: int


@dataclass(frozen=True)
class SectionWords:
    """Incidents of one state. more: how many further ones there are."""

    state: str
    sign: StateSign
    heading: str
    rows: tuple[RowWords, ...]
    total: int
    more: int


@dataclass(frozen=True)
class Choice:
    """One value of a filter."""

    value: str
    word: str
    count: int
    is_on: bool
    icon: str = ""
    colour: str = ""


@dataclass(frozen=True)
class Filters:
    """The filters with their counts."""

    states: tuple[Choice, ...]
    severities: tuple[Choice, ...]
    families: tuple[Choice, ...]
    runs: tuple[Choice, ...]
    rules: tuple[Choice, ...]
    mine: Choice


def alerts_page(view: AlertsView, say: Say) -> Page:
    """All alerts, one of them perhaps open."""
    shown = listing(view.incidents, view.asked)
    detail = None if view.detail is None else detail_words(view, view.detail, say)
    return Page(
        "alerts.html",
        _title(view, detail, say),
        section="alerts",
        script="alerts.js",
        styles=("alerts.css",),
        values={
            "view": view,
            "headline": headline(view.incidents, say),
            "merged": _merged(view, say),
            "sections": [_section(view, section, say) for section in shown.sections],
            "shown": len(shown.rows()),
            "found": shown.total,
            "filters": _filters(view, say),
            "detail": detail,
            "more_href": view.asked.with_more().href(None if detail is None else detail.id),
            "all_href": view.asked.without_filters().href(),
            "list_href": view.asked.href(),
        },
        data={"reader": view.asked.wanted.reader, "open": None if detail is None else detail.id},
    )


def headline(incidents: tuple[Incident, ...], say: Say) -> str:
    """What needs someone, in one sentence."""
    need = sum(incident.state == "firing" for incident in incidents)
    hand = sum(incident.state == "acknowledged" for incident in incidents)
    if need and hand:
        return say.plural(
            "{n} incident needs someone, {hand} in hand",
            "{n} incidents need someone, {hand} in hand",
            need,
            hand=f"{hand:,}",
        )
    if need:
        return say.plural("{n} incident needs someone", "{n} incidents need someone", need)
    if hand:
        return say.plural(
            "Nothing needs anyone new, {n} incident is in hand",
            "Nothing needs anyone new, {n} incidents are in hand",
            hand,
        )
    return say("Nothing needs anyone now")


def _title(view: AlertsView, detail: DetailWords | None, say: Say) -> str:
    firing = [incident.severity for incident in view.incidents if incident.state == "firing"]
    worst = next((severity for severity in SEVERITY_SIGNS if severity in firing), None)
    page = say("Alerts")
    if detail is None:
        sign = "" if worst is None else f"{severity_sign(worst)[1]} "
        return f"{sign}{headline(view.incidents, say)} \u2013 {page} \u2013 floatscope"
    sign = "" if worst is None else f"{severity_sign(worst)[1]} {len(firing):,} "
    return f"{sign}{detail.title} \u2013 {page} \u2013 floatscope"


def _merged(view: AlertsView, say: Say) -> tuple[str, ...]:
    """How many alerts the incidents are, and how many of them the top bar counts, in sentences."""
    incidents = len(view.incidents)
    if not incidents:
        return ()
    alerts = [alert for incident in view.incidents for alert in incident.alerts]
    all_of_them = say.plural(
        "{n} alert in {incidents} by run and onset: what is open, or was resolved in the last 24 hours.",
        "{n} alerts in {incidents} by run and onset: what is open, or was resolved in the last 24 hours.",
        len(alerts),
        incidents=say.plural("{n} incident", "{n} incidents", incidents),
    )
    firing = sum(alert.state == "firing" for alert in alerts)
    if not firing:
        return (all_of_them,)
    of_the_bar = say.plural(
        "{n} alert fires and nobody has it: the top bar counts alerts.",
        "{n} alerts fire and nobody has them: the top bar counts alerts.",
        firing,
    )
    return all_of_them, of_the_bar


def _section(view: AlertsView, section: Section, say: Say) -> SectionWords:
    sign = state_sign(section.state)
    return SectionWords(
        state=section.state,
        sign=sign,
        heading=say(sign.heading),
        rows=tuple(row_words(view, incident, say) for incident in section.incidents),
        total=section.total,
        more=section.total - len(section.incidents),
    )


def row_words(view: AlertsView, incident: Incident, say: Say) -> RowWords:
    """One incident as a line."""
    lead = incident.lead
    finding = finding_of(view.findings.get(lead.id, {}), say)
    unfolded = incident.key in view.asked.unfolded and len(incident.alerts) > 1
    shown = incident.alerts[:UNFOLDED_ALERTS] if unfolded else ()
    opened = None if view.detail is None else view.detail.line.id
    return RowWords(
        key=incident.key,
        lead=lead.id,
        href=view.asked.href(lead.id),
        unfold_href=view.asked.toggled(incident.key).href(opened),
        is_open=view.detail is not None and view.detail.incident.key == incident.key,
        is_unfolded=unfolded,
        severity=severity_sign(incident.severity),
        state=state_sign(incident.state),
        state_name=incident.state,
        title=title_of(finding),
        run=view.runs[incident.run],
        onset=lead.onset,
        place=finding.tensor or finding.layer,
        cause=finding.cause,
        cause_word=say(cause_label(finding.cause)),
        family=lead.family,
        family_word=say(FAMILIES.get(lead.family, lead.family)),
        count=len(incident.alerts),
        who=who_has(incident, view.silences.get(lead.id), say),
        age=say.duration((view.now - incident.began).total_seconds()),
        began=incident.began.isoformat(),
        ids=ids_of(incident, every=unfolded),
        alerts=tuple(alert_words(view, alert, say) for alert in shown),
        more_alerts=len(incident.alerts) - len(shown) if unfolded else 0,
    )


def _filters(view: AlertsView, say: Say) -> Filters:
    found, wanted = facets(view.incidents, view.asked), view.asked.wanted
    return Filters(
        states=tuple(
            Choice(
                state,
                say(STATE_SIGNS[state].word),
                n,
                not wanted.states or state in wanted.states,
                STATE_SIGNS[state].icon,
                STATE_SIGNS[state].colour,
            )
            for state, n in found.states.items()
        ),
        severities=tuple(
            Choice(
                severity,
                say(SEVERITY_SIGNS[severity][2]),
                n,
                not wanted.severities or severity in wanted.severities,
                SEVERITY_SIGNS[severity][0],
                SEVERITY_SIGNS[severity][0],
            )
            for severity, n in found.severities.items()
        ),
        families=tuple(
            Choice(family, say(FAMILIES[family]), n, not wanted.families or family in wanted.families)
            for family, n in found.families.items()
        ),
        runs=tuple(
            Choice(run, view.runs[run].name if run in view.runs else run, n, run == wanted.run)
            for run, n in found.runs.items()
        ),
        rules=tuple(Choice(rule, rule, n, rule == wanted.rule) for rule, n in found.rules.items()),
        mine=Choice("1", say("Only mine"), found.mine, wanted.mine),
    )
