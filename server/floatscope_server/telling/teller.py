"""Tells channels of a run's alerts: decides for each, makes one message of what goes together, queues it.

All of it happens in the caller's transaction, so that there is no message without what it tells and nothing
is told twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from sqlalchemy import Connection

from floatscope_server.alerting import Touched
from floatscope_server.curves import loss_curve_if_readable
from floatscope_server.store import alerts, batches, channels, outbox, runs, telling
from floatscope_server.store.alerts import AlertRecord
from floatscope_server.store.channels import ChannelRecord
from floatscope_server.store.runs import RunRecord
from floatscope_server.store.telling import Line
from floatscope_server.telling.decide import QUIET, SILENCE, Decision, Heard, Situation, decide
from floatscope_server.telling.notice import (
    ESCALATED,
    PASSED,
    RAISED,
    RECOVERED,
    REPEATED,
    SUBJECTS,
    SUMMARY,
    Notice,
    Subject,
)
from floatscope_server.telling.states import FIRING, rank_of
from floatscope_server.telling.terms import Terms

CURVE_POINTS = 24
SUMMARY_LINES = 500  # alerts that one summary catches up with; a longer night makes a second one


class Bodies(Protocol):
    """Makes the body of a message for a channel."""

    def body(self, notice: Notice, channel: ChannelRecord) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class _Told:
    """One alert that goes into a message, and what the channel will have heard then."""

    alert: AlertRecord
    line: Line
    event: str
    run: RunRecord

    def order(self) -> tuple[object, ...]:
        """Worst first, then what is new, then what fires longest."""
        since = self.alert.firing_since
        old_news = self.event == REPEATED
        return (-rank_of(self.alert.severity), old_news, since is None, since or 0.0, self.alert.number)


class Teller:
    """Queues messages. group_s, flap_s: see Terms."""

    def __init__(self, *, bodies: Bodies, group_s: float, flap_s: float) -> None:
        self._bodies = bodies
        self._group_s = group_s
        self._flap_s = flap_s

    def tell(self, c: Connection, run: RunRecord, touched: Touched, *, now: float) -> int:
        """Tells what is to be told of the run now; returns the number of messages that were queued."""
        on = {channel.id: channel for channel in channels.listed(c, lock=True) if channel.enabled}
        if touched.begun and on:
            _open_lines(c, run, touched.begun, tuple(on.values()))
        lines = [line for line in telling.of_run(c, run.id, touched.changed) if line.channel in on]
        found = alerts.of_ids(c, {line.alert for line in lines}) if lines else {}
        count = 0
        for channel in on.values():
            its = [line for line in lines if line.channel == channel.id]
            count += self._tell_channel(c, run, channel, its, found, now)
        return count

    def summarise(self, c: Connection, channel_id: str, *, now: float) -> int:
        """Tells in one message what the quiet hours of a channel held back and still fires."""
        channel = channels.get(c, channel_id)
        terms = self._terms(channel)
        run_ids = telling.held_runs(c, channel_id, now=now, limit=SUMMARY_LINES)
        run_of = {run_id: runs.find(c, run_id, lock=True) for run_id in run_ids}  # before their alerts
        lines = telling.held(c, channel_id, now=now, limit=SUMMARY_LINES)
        found = alerts.of_ids(c, {line.alert for line in lines})
        begun: list[_Told] = []
        for line in lines:
            alert = found[line.alert]
            run = run_of.get(alert.run_id)
            if run is None:  # held back since, or deleted: the next summary's
                continue
            decision = decide(_situation(alert, run, now), line.heard, terms, now)
            if decision.event is None:
                _save(c, line, decision)
            elif decision.event == RECOVERED:
                self._queue(c, channel, [_Told(alert, line, RECOVERED, run)], terms, now)
            else:
                begun.append(_Told(alert, line, decision.event, run))
        return self._queue(c, channel, begun, terms, now, event=SUMMARY)

    def open_lines(self, c: Connection, run: RunRecord, alert_ids: Sequence[str]) -> None:
        """From now on the channels that want these alerts hear of them."""
        _open_lines(
            c, run, alert_ids, [channel for channel in channels.listed(c, lock=True) if channel.enabled]
        )

    def _tell_channel(
        self,
        c: Connection,
        run: RunRecord,
        channel: ChannelRecord,
        lines: Sequence[Line],
        found: Mapping[str, AlertRecord],
        now: float,
    ) -> int:
        terms = self._terms(channel)
        begun: list[_Told] = []
        over: list[_Told] = []
        waiting: list[tuple[Line, Decision]] = []
        for line in lines:
            alert = found[line.alert]
            decision = decide(_situation(alert, run, now), line.heard, terms, now)
            if decision.event is None:
                waiting.append((line, decision))
            elif decision.event == RECOVERED:
                over.append(_Told(alert, line, decision.event, run))
            elif line.heard.waits != QUIET or alert.severity == "critical":
                begun.append(_Told(alert, line, decision.event, run))
            # what quiet hours held back is left to the summary
        for line, decision in waiting:
            alert = found[line.alert]
            joined = (
                decide(_situation(alert, run, now), line.heard, terms, now, early=True) if begun else decision
            )
            if joined.event is None:
                _save(c, line, joined if joined.due is None else decision)
            else:
                begun.append(_Told(alert, line, joined.event, run))
        return self._queue(c, channel, begun, terms, now) + self._queue(c, channel, over, terms, now)

    def _queue(
        self,
        c: Connection,
        channel: ChannelRecord,
        told: Sequence[_Told],
        terms: Terms,
        now: float,
        *,
        event: str | None = None,
    ) -> int:
        if not told:
            return 0
        ordered = sorted(told, key=_Told.order)
        notice = _notice(c, ordered, terms, now, event)
        lead = ordered[0]
        message = outbox.add(
            c,
            channel=channel.id,
            alert=lead.alert.id,
            event=notice.event,
            body=self._bodies.body(notice, channel),
            once=f"{lead.alert.id}#{lead.line.heard.messages + 1}",
            others=[(one.alert.id, one.event) for one in ordered[1:]],
            now=now,
        )
        for one in ordered:
            heard = after_telling(one.line.heard, one.event, severity=one.alert.severity, now=now)
            then = decide(_situation(one.alert, one.run, now), heard, terms, now)
            _save(c, replace(one.line, heard=heard), then, changed=True)
        return 0 if message is None else 1

    def _terms(self, channel: ChannelRecord) -> Terms:
        return Terms(
            min_severity=channel.min_severity,
            repeat_s=channel.repeat_s,
            escalate_s=channel.escalate_s,
            quiet=channel.quiet,
            group_s=self._group_s,
            flap_s=self._flap_s,
        )


def _open_lines(c: Connection, run: RunRecord, alert_ids: Sequence[str], on: Sequence[ChannelRecord]) -> None:
    severity_of = {alert.id: alert.severity for alert in alerts.of_ids(c, alert_ids).values()}
    for channel in on:
        wanted = [
            alert
            for alert, severity in severity_of.items()
            if channel.wants(severity=severity, project=run.project)
        ]
        telling.open_lines(c, run.id, wanted, [channel.id])


def after_telling(heard: Heard, event: str, *, severity: str, now: float) -> Heard:
    """What the channel knows once the message is queued."""
    began = event in (RAISED, ESCALATED, PASSED)
    return replace(
        heard,
        told=RECOVERED if event in (RECOVERED, PASSED) else FIRING,
        severity=severity,
        told_at=now,
        raised_at=now if began else heard.raised_at,
        raises=0 if began else heard.raises,
        repeats=0 if began else heard.repeats + (event == REPEATED),
        messages=heard.messages + 1,
        worse=False,
        waits=None,
        due=None,
    )


def _situation(alert: AlertRecord, run: RunRecord, now: float) -> Situation:
    since = now if alert.firing_since is None else alert.firing_since
    return Situation(alert.state, alert.severity, since, alert.mute_until, ended=run.status in runs.ENDED)


def _save(c: Connection, line: Line, decision: Decision, *, changed: bool = False) -> None:
    """Stores when to look again; an event that is left to somebody else's message keeps its time."""
    waits = decision.waits
    heard = replace(line.heard, due=decision.due, waits=waits)
    if changed or heard != line.heard:
        telling.save(c, [replace(line, heard=heard)])


def _notice(c: Connection, ordered: Sequence[_Told], terms: Terms, now: float, event: str | None) -> Notice:
    lead = ordered[0]
    finding, rank = lead.alert.finding, lead.alert.finding.get("rank") or 0
    onset = finding.get("onset_step")
    goes_on = lead.event not in (RECOVERED, PASSED) and lead.run.status not in runs.ENDED
    return Notice(
        event=event or lead.event,
        subjects=tuple(_subject(one) for one in ordered[:SUBJECTS]),
        more=max(len(ordered) - SUBJECTS, 0),
        now=now,
        repeat_number=lead.line.heard.repeats + 1 if lead.event == REPEATED else 0,
        next_repeat=now + terms.repeat_s if goes_on and terms.repeat_s is not None else None,
        reason=_reason(lead, now, event),
        loss=loss_curve_if_readable(c, lead.run.id, rank, points=CURVE_POINTS),
        onset_time=None if onset is None else batches.time_of(c, lead.run.id, step=onset, rank=rank),
    )


def _subject(one: _Told) -> Subject:
    since = one.alert.firing_since
    return Subject(
        alert_id=one.alert.id,
        event=one.event,
        severity=one.alert.severity,
        finding=one.alert.finding,
        run=one.run,
        state=one.alert.state,
        since=since,
        raises=max(one.line.heard.raises, 1),
    )


def _reason(lead: _Told, now: float, event: str | None) -> str | None:
    heard, since = lead.line.heard, lead.alert.firing_since
    if event == SUMMARY:
        return "quiet hours are over"
    if lead.event == ESCALATED and since is not None:
        return f"nobody acknowledged it for {duration(now - since)}"
    if lead.event == PASSED:
        return "it was over before anybody was told"
    if lead.event == RAISED and heard.raises > 1:
        return f"it began {heard.raises} times since it was last told"
    if lead.event == RAISED and heard.waits == SILENCE:
        return "a silence ended"
    return None


def duration(seconds: float) -> str:
    """For example ``6 h 13 min``; less than a minute is in seconds."""
    whole = max(int(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    days, rest = divmod(whole // 60, 24 * 60)
    parts = ((days, "d"), (rest // 60, "h"), (rest % 60, "min"))
    return " ".join(f"{number} {unit}" for number, unit in [p for p in parts if p[0]][:2])
