"""What happened to a run, newest first: alerts, onsets, the first NaN, resumes, its end, its baseline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from floatscope_dashboards.findings import Finding, read_findings
from floatscope_dashboards.run_facts import AlertFacts, AlertLine, StepEvent
from floatscope_dashboards.say import Say
from floatscope_dashboards.views import RunView
from floatscope_dashboards.wording import health_sign

FIRST_SHOWN = 8
MOST_SHOWN = 200


@dataclass(frozen=True)
class EventLine:
    """One line. time or step is None where it is not known. kind: of the icon, word: what it stands for."""

    kind: str
    word: str
    text: str
    time: datetime | None = None
    step: int | None = None
    note: str = ""


def events_log(view: RunView, say: Say) -> tuple[EventLine, ...]:
    """Newest first; of what has no time, the highest step first, after what has one."""
    found = [
        *_of_alerts(view, say),
        *_of_findings(view, say),
        *(_of_step(item, say) for item in view.facts.events),
        *_of_status(view, say),
    ]
    timed = sorted((item for item in found if item.time is not None), key=_moment, reverse=True)
    others = sorted((item for item in found if item.time is None), key=lambda item: -(item.step or 0))
    return tuple((timed + others)[:MOST_SHOWN])


def _moment(item: EventLine) -> tuple[float, int]:
    return item.time.timestamp() if item.time is not None else 0.0, item.step or 0


def _of_alerts(view: RunView, say: Say) -> Iterator[EventLine]:
    for alert in view.facts.alerts:
        for line in alert.lines:
            yield _alert_line(alert, line, say)


def _alert_line(alert: AlertFacts, line: AlertLine, say: Say) -> EventLine:
    sign = health_sign(alert.severity)
    what = str(say.engine(alert.summary.rstrip())).removesuffix(".").removesuffix("。")
    kind, word = sign.kind, say(sign.word)
    if line.event in ("recovered", "resolve", "withdrawn", "replaced"):
        kind, word = "back" if line.event == "recovered" else "ok", say("Over")
    elif line.event in ("acknowledge", "note", "not_the_cause", "silenced", "silence_ended", "reopen"):
        kind, word = "info", say("Note")
    return EventLine(
        kind,
        word,
        _alert_text(line, what, say),
        time=line.time,
        step=alert.onset_step if line.event == "raised" else None,
        note=say.engine(line.note) if line.by == "engine" else line.note,
    )


def _alert_text(line: AlertLine, what: str, say: Say) -> str:
    match line.event:
        case "raised":
            return what
        case "severity_changed":
            return say("Severity changed: {what}", what=what)
        case "worsened":
            return say("Got worse: {what}", what=what)
        case "recovered":
            return say("Recovered: {what}", what=what)
        case "replaced":
            return say("Explained by another finding now: {what}", what=what)
        case "withdrawn":
            return say("No longer found: {what}", what=what)
        case "acknowledge":
            return say("{who} acknowledged: {what}", who=line.by, what=what)
        case "resolve":
            return say("{who} closed: {what}", who=line.by, what=what)
        case "not_the_cause":
            return say("{who} says that it is not the cause: {what}", who=line.by, what=what)
        case "reopen":
            return say("{who} reopened: {what}", who=line.by, what=what)
        case "note":
            return say("{who} noted on: {what}", who=line.by, what=what)
        case "silenced":
            return say("Silenced: {what}", what=what)
        case "silence_ended":
            return say("The silence ended: {what}", what=what)
        case _:
            return what


def _of_findings(view: RunView, say: Say) -> Iterator[EventLine]:
    """Findings that are no alerts (remarks): they have a step and no time."""
    told = {alert.finding for alert in view.facts.alerts}
    for finding in read_findings(view.verdict, say):
        if finding.key not in told:
            yield _finding_line(finding, say)


def _finding_line(finding: Finding, say: Say) -> EventLine:
    sign = health_sign(finding.severity)
    word = say("Note") if finding.severity == "info" else say(sign.word)
    return EventLine(sign.kind, word, finding.title, step=finding.onset_step)


def _of_step(item: StepEvent, say: Say) -> EventLine:
    if item.kind == "nonfinite":
        return EventLine("nan", say("NaN or Inf"), say("First loss that is not finite"), item.time, item.step)
    if item.kind == "resumed":
        return EventLine("run", say("Running"), say("Resumed"), item.time, item.step)
    if item.kind == "throttled":
        text = say("A GPU ran slower than it could")
        if item.until is not None and item.until != item.step:
            text = say("A GPU ran slower than it could, until step {step}", step=say.step(item.until))
        return EventLine("warn", say("Warning"), text, item.time, item.step)
    return EventLine("info", say("Note"), say("{who} set another baseline", who=item.by), item.time)


def _of_status(view: RunView, say: Say) -> Iterator[EventLine]:
    row = view.row
    yield EventLine("run", say("Running"), say("The run was created"), row.created)
    if row.last_seen is None:
        return
    if row.status == "finished":
        yield EventLine("end", say("Finished"), say("The run finished"), row.last_seen, row.last_step)
    elif row.status == "failed":
        yield EventLine("no", say("Failed"), say("The run failed"), row.last_seen, row.last_step)
    elif row.status == "crashed":
        yield EventLine("no", say("Crashed"), say("The run crashed"), row.last_seen, row.last_step)
    elif row.status == "stalled":
        yield EventLine("stall", say("Stalled"), say("Last data of the run"), row.last_seen, row.last_step)
