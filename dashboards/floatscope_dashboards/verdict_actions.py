"""What a reader may do about a finding, and what people did about it, in words."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import quote

from floatscope_dashboards.findings import Finding
from floatscope_dashboards.run_facts import AlertFacts
from floatscope_dashboards.say import Say
from floatscope_dashboards.views import RunView

FOREVER = timedelta(days=365 * 50)
"""A mute this long has no end that anybody waits for."""


@dataclass(frozen=True)
class Act:
    """One button or link. kind: what verdict_actions.js does ("acknowledge", "not_the_cause", "resolve",
    "reopen", "finish", "silence"), or "link". targets: ids of the alerts, or the run.
    """

    kind: str
    text: str
    targets: tuple[str, ...] = ()
    href: str = ""


def acts_of(view: RunView, lead: Finding | None, current: tuple[Finding, ...], say: Say) -> tuple[Act, ...]:
    """What is offered in the banner: nothing that the reader may not do."""
    acts: list[Act] = []
    known = view.facts
    run = view.row.run_id
    if lead is None:
        if view.row.status == "stalled":
            if known.may_ingest:
                acts.append(Act("finish", say("Mark as ended"), (run,)))
            if known.may_write:
                acts.append(Act("silence", say("Silence for 2 h"), (run,)))
        return tuple(acts)
    alert = known.alert_of(lead.key)
    if known.may_write and alert is not None:
        acts.extend(_of_alert(alert, lead, _open_alerts(view, current), say))
    acts.append(Act("link", say("Incident report"), href=f"/runs/{quote(run, safe='')}/report"))
    return tuple(acts)


def _open_alerts(view: RunView, current: tuple[Finding, ...]) -> list[AlertFacts]:
    found = (view.facts.alert_of(item.key) for item in current)
    return [item for item in found if item is not None and item.state in ("firing", "silenced")]


def _of_alert(alert: AlertFacts, lead: Finding, waiting: list[AlertFacts], say: Say) -> list[Act]:
    if alert.state == "recovered":
        return [
            Act("resolve", say("Close now"), (alert.id,)),
            Act("reopen", say("Reopen"), (alert.id,)),
        ]
    if alert.state == "resolved":
        return [Act("reopen", say("Reopen"), (alert.id,))]
    acts = []
    if len(waiting) > 1:
        ids = tuple(item.id for item in waiting)
        acts.append(Act("acknowledge", say("Acknowledge all {n}", n=len(ids)), ids))
    elif waiting:
        acts.append(Act("acknowledge", say("Acknowledge"), (waiting[0].id,)))
    else:
        acts.append(Act("reopen", say("Reopen"), (alert.id,)))
    word = say("I know the cause") if lead.uncertain else say("Not the cause")
    acts.append(Act("not_the_cause", word, (alert.id,)))
    return acts


def state_words(view: RunView, finding: Finding, say: Say) -> str:
    """What people did about the finding, "" for nothing."""
    alert = view.facts.alert_of(finding.key)
    if alert is None:
        return ""
    return say.sentences((_state(alert, view, say), _muted(alert, view, say)))


def _state(alert: AlertFacts, view: RunView, say: Say) -> str:
    if alert.state == "acknowledged":
        line = alert.last("acknowledge")
        if line is None:
            return say("Acknowledged.")
        age = say.duration((view.now - line.time).total_seconds())
        if line.note:
            return say("Acknowledged by {who} {age} ago: {note}", who=line.by, age=age, note=line.note)
        return say("Acknowledged by {who} {age} ago.", who=line.by, age=age)
    if alert.state == "silenced":
        if alert.silence_ends is None:
            return say("Silenced.")
        return say("Silenced until {time} UTC.", time=f"{alert.silence_ends:%Y-%m-%d %H:%M}")
    if alert.state == "resolved":
        return _closed(alert, say)
    return ""


def _closed(alert: AlertFacts, say: Say) -> str:
    rejected, closed = alert.last("not_the_cause"), alert.last("resolve")
    if rejected is not None and (closed is None or rejected.time >= closed.time):
        if rejected.note:
            return say("{who} says that this is not the cause: {note}", who=rejected.by, note=rejected.note)
        return say("{who} says that this is not the cause.", who=rejected.by)
    return say("Closed by {who}.", who=closed.by) if closed is not None else say("Closed.")


def _muted(alert: AlertFacts, view: RunView, say: Say) -> str:
    until = alert.mute_until
    if until is None or until <= view.now:
        return ""
    if until - view.now > FOREVER:
        return say("Its messages are held back.")
    return say("Its messages are held back until {time} UTC.", time=f"{until:%Y-%m-%d %H:%M}")
