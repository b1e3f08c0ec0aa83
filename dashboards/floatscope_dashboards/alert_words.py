"""Words and signs of alerts: states, what an incident is called, who has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from floatscope_dashboards.alerts_view import Held
from floatscope_dashboards.findings import Finding, read_findings
from floatscope_dashboards.incidents import Incident
from floatscope_dashboards.pages import when
from floatscope_dashboards.say import Say, later


@dataclass(frozen=True)
class StateSign:
    """How a state looks: icon, class of its chip, colour class, word, heading of its section."""

    icon: str
    chip: str
    colour: str
    word: str
    heading: str


STATE_SIGNS: Mapping[str, StateSign] = {
    "firing": StateSign("fire", "open", "crit", later("Firing"), later("Firing, nobody has it")),
    "acknowledged": StateSign("eye", "info", "info", later("Acknowledged"), later("Acknowledged")),
    "recovered": StateSign("back", "ok", "ok", later("Recovered"), later("Recovered, not closed")),
    "silenced": StateSign("mute", "mut", "idle", later("Silenced"), later("Silenced")),
    "resolved": StateSign("ok", "line", "idle", later("Resolved"), later("Resolved in the last 24 hours")),
}
UNKNOWN_STATE = StateSign("info", "line", "idle", later("Unknown"), later("Unknown"))
SEVERITY_SIGNS: Mapping[str, tuple[str, str, str]] = {
    "critical": ("crit", "\u25b2", later("Critical")),
    "warning": ("warn", "\u25c6", later("Warning")),
    "info": ("info", "\u25cb", later("Note")),
}
"""Severity -> icon and colour class, character for titles, word."""


IDS_AT_ONCE = 50
"""Alerts of an incident up to which the page names all of them; of more they are asked for before acting."""
_LETTERS = {"firing": "f", "acknowledged": "a", "silenced": "s", "recovered": "r", "resolved": "d"}


def ids_of(incident: Incident, *, every: bool) -> str:
    """The alerts of an incident, each with the letter of its state before its id; "" for too many, unless
    `every`.
    """
    if not every and len(incident.alerts) > IDS_AT_ONCE:
        return ""
    return " ".join(_LETTERS.get(alert.state, "f") + alert.id for alert in incident.alerts)


def state_sign(state: str) -> StateSign:
    return STATE_SIGNS.get(state, UNKNOWN_STATE)


def severity_sign(severity: str) -> tuple[str, str, str]:
    return SEVERITY_SIGNS.get(severity, SEVERITY_SIGNS["info"])


def finding_of(json: Mapping[str, Any], say: Say) -> Finding:
    """The finding as a typed object, also one that another has replaced, which verdicts leave out."""
    return read_findings({"findings": [{**json, "state": "raised"}]}, say)[0]


def title_of(finding: Finding) -> str:
    """What it is, in a few words: the cause, or what was seen where no cause is determined."""
    if finding.cause == "undetermined" and finding.summary:
        return finding.summary.rstrip().removesuffix(".")
    return finding.label


def run_href(run_id: str, step: int | None) -> str:
    return f"/runs/{quote(run_id, safe='')}" + ("" if step is None else f"?at={step}")


def who_has(incident: Incident, held: Held | None, say: Say) -> str:
    """The line below the state: who has it, or why nobody needs to."""
    if incident.state == "silenced":
        return _held_until(held, say)
    if incident.owners:
        first, *others = incident.owners
        return (
            say.plural("{name} and {n} other", "{name} and {n} others", len(others), name=first)
            if others
            else first
        )
    if incident.state == "firing":
        mine = sum(alert.state == "firing" for alert in incident.alerts)
        total = len(incident.alerts)
        return (
            say("{n} of {all} alerts", n=f"{mine:,}", all=f"{total:,}") if mine < total else say("nobody yet")
        )
    return ""


def _held_until(held: Held | None, say: Say) -> str:
    if held is None:
        return ""
    if held.ends is None:
        return say("until {name} ends it", name=held.by)
    return say("until {time}", time=when(held.ends, "date"))
