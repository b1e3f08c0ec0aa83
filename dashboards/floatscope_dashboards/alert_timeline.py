"""What happened to an alert, line by line: the onset, the engine, people, and whom it was told to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from floatscope_dashboards.alerts_view import AlertDetail, HistoryLine, Told
from floatscope_dashboards.say import Say, later
from floatscope_dashboards.wording import cause_label

_OPENED: Mapping[str, str] = {
    "critical": later("Opened as critical"),
    "warning": later("Opened as warning"),
}
_NOW: Mapping[str, tuple[str, str]] = {
    "critical": ("crit", later("Raised to critical")),
    "warning": ("warn", later("Now a warning")),
    "info": ("info", later("Now a note only")),
}
_ENGINE: Mapping[str, tuple[str, str]] = {
    "worsened": ("crit", later("Got worse")),
    "recovered": ("back", later("Back to normal")),
    "replaced": ("ok", later("Another finding explains it now")),
    "withdrawn": ("ok", later("Taken back: the finding is no longer made")),
    "silenced": ("mute", later("Silenced, messages are held back")),
    "silence_ended": ("fire", later("The silence ended, it fires again")),
}
_PEOPLE: Mapping[str, tuple[str, str]] = {
    "acknowledge": ("eye", later("Acknowledged by {name}")),
    "resolve": ("ok", later("Resolved by {name}")),
    "not_the_cause": ("no", later("Not the cause, says {name}")),
    "reopen": ("fire", later("Opened again by {name}")),
    "note": ("note", later("Note by {name}")),
}
_TOLD: Mapping[str, str] = {
    "raised": later("Told {channel}"),
    "worsened": later("Told {channel} that it got worse"),
    "repeated": later("Told {channel} again, nobody had acknowledged"),
    "escalated": later("Escalated to {channel}, nobody had acknowledged"),
    "recovered": later("Told {channel} that it recovered"),
    "passed": later("Told {channel} that it came and went"),
    "summary": later("Told {channel} after its quiet hours"),
}
TOLD_WHAT: Mapping[str, str] = {
    "raised": later("Opened"),
    "worsened": later("Worse"),
    "repeated": later("Repeat"),
    "escalated": later("Escalated"),
    "recovered": later("Recovered"),
    "passed": later("Came and went"),
    "summary": later("Summary"),
}


@dataclass(frozen=True)
class TimelineLine:
    """One line. icon: name of its sign, also its colour class. detail: below it, "" for none."""

    time: datetime
    icon: str
    text: str
    detail: str = ""


def timeline(detail: AlertDetail, say: Say) -> tuple[TimelineLine, ...]:
    """Oldest first."""
    lines = [*_onset(detail, say), *_history(detail, say), *_sent(detail, say)]
    return tuple(sorted(lines, key=lambda line: line.time))


def event_text(event: str, by: str, before: str, after: str, say: Say) -> str:
    """One event in the words of the timeline, where the rest of the alert's history is not at hand."""
    if event == "raised":
        return say("Opened")
    if event == "severity_changed":
        return say(_NOW.get(after, ("", later("Its severity changed")))[1])
    if event == "cause_changed":
        return say("The cause is now: {cause}", cause=say(cause_label(after)))
    if event in _PEOPLE:
        return say(_PEOPLE[event][1], name=by)
    if event in _ENGINE:
        return say(_ENGINE[event][1])
    said = say(
        "{event} by {by}", event=event.replace("_", " "), by=say("the engine") if by == "engine" else by
    )
    return f"{said}, {before} \u2192 {after}" if before and after else said


def notes(detail: AlertDetail) -> tuple[HistoryLine, ...]:
    """What people wrote, oldest first."""
    return tuple(line for line in detail.history if line.note and line.event in _PEOPLE)


def _onset(detail: AlertDetail, say: Say) -> Iterator[TimelineLine]:
    if detail.onset_time is not None and detail.line.onset is not None:
        yield TimelineLine(
            detail.onset_time,
            detail_icon(detail.line.severity),
            say("Onset, step {step}", step=say.step(detail.line.onset)),
        )


def _history(detail: AlertDetail, say: Say) -> Iterator[TimelineLine]:
    severity = _first_severity(detail)
    opened = detail.further > 0
    for line in detail.history:
        if line.event == "raised":
            text = say("Began again") if opened else say(_OPENED.get(severity, later("Opened")))
            opened = True
            yield TimelineLine(line.time, detail_icon(severity), text)
        elif line.event == "severity_changed":
            icon, text = _NOW.get(line.after, ("info", later("Its severity changed")))
            severity = line.after
            yield TimelineLine(line.time, icon, say(text))
        elif line.event == "cause_changed":
            text = say("The cause is now: {cause}", cause=say(cause_label(line.after)))
            was = say("It was: {cause}", cause=say(cause_label(line.before)))
            yield TimelineLine(line.time, "info", text, was)
        elif line.event in _PEOPLE:
            icon, text = _PEOPLE[line.event]
            yield TimelineLine(line.time, icon, say(text, name=line.by), line.note)
        else:
            icon, text = _ENGINE.get(line.event, ("info", later("Changed")))
            yield TimelineLine(
                line.time, icon, say(text), say.engine(line.note) if line.event == "withdrawn" else ""
            )


def _first_severity(detail: AlertDetail) -> str:
    """As it was before the first change on record."""
    changes = (line.before for line in detail.history if line.event == "severity_changed")
    return next(changes, detail.line.severity)


def _sent(detail: AlertDetail, say: Say) -> Iterator[TimelineLine]:
    """Messages that arrived; the others are in the table of deliveries."""
    for told in detail.told:
        if told.state == "sent" and told.finished is not None:
            text = say(_TOLD.get(told.event, later("Told {channel}")), channel=told.channel)
            yield TimelineLine(told.finished, "told", text)


def detail_icon(severity: str) -> str:
    return {"critical": "crit", "warning": "warn"}.get(severity, "info")


def result(told: Told, say: Say) -> tuple[str, str, str]:
    """Sign, word and detail of what became of a message, without its times."""
    if told.state == "sent":
        word = say("Sent") if told.attempts <= 1 else say("Sent, try {n}", n=told.attempts)
        return "ok", word, ""
    if told.state == "dead":
        word = say.plural("Given up after {n} try", "Given up after {n} tries", told.attempts)
        return "no", word, told.error
    if told.attempts == 0:
        return "dots", say("Waiting"), told.error
    return "dots", say.plural("{n} try failed", "{n} tries failed", told.attempts), told.error
