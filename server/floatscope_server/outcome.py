"""What follows from a judgement: verdict, the run's headline, alerts and messages, all in the caller's
transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from floatscope_server import alerting
from floatscope_server.alerting import Change
from floatscope_server.curves import loss_curve
from floatscope_server.diagnosis import Judgement, describe
from floatscope_server.events import Events
from floatscope_server.notify.messages import Messages
from floatscope_server.store import alerts, batches, channels, outbox, runs, verdicts
from floatscope_server.store.alerts import AlertEvent
from floatscope_server.store.runs import RunRecord

_log = logging.getLogger(__name__)

SEVERITY_ORDER = ("info", "warning", "critical")


@dataclass(frozen=True)
class News:
    """What readers are told once the transaction is through."""

    status: str | None = None
    findings: int = 0
    messages: int = 0


class Outcome:
    """Stores judgements. ``woken`` is called after a commit that left messages to send."""

    def __init__(self, *, messages: Messages, events: Events, woken: Callable[[], None]) -> None:
        self._messages = messages
        self._events = events
        self._woken = woken

    def store(self, c: Connection, run: RunRecord, judgement: Judgement, *, now: float) -> News:
        """Stores verdict, alerts, messages and engine state, and raises the run's version."""
        values: dict[str, Any] = {"version": run.version + 1}
        if judgement.error is not None:
            values["diagnosis_error"] = judgement.error
        if judgement.baseline_arrivals is not None:
            values["baseline_arrivals"] = judgement.baseline_arrivals
        news = News()
        if judgement.verdict is not None:
            try:
                with c.begin_nested():
                    news = self._verdict(c, run, judgement.verdict, now)
                    if judgement.saved is not None:
                        verdicts.save_engine(c, run.id, judgement.saved)
            except SQLAlchemyError:
                raise
            except Exception as error:  # a verdict that cannot be stored or told must not cost the batch
                _log.exception("the verdict of run %s could not be stored", run.run_id)
                values["diagnosis_error"] = describe(error)
        runs.change(c, run.id, values)
        return news

    def _verdict(self, c: Connection, run: RunRecord, body: Mapping[str, Any], now: float) -> News:
        findings: Sequence[Mapping[str, Any]] = body.get("findings", [])
        worst = worst_finding(findings)
        headline = {
            "health": body["status"],
            "summary": body["summary"],
            "cause": None if worst is None else worst.get("cause"),
            "onset_step": None if worst is None else worst.get("onset_step"),
        }
        runs.change(c, run.id, headline)
        verdicts.save(c, run.id, body, now=now)
        changes = alerting.apply(c, run=run.id, run_id=run.run_id, findings=findings, now=now)
        sent = self._enqueue(c, run, changes, now) if changes else 0
        return News(body["status"], len(findings), sent)

    def tell(self, run: RunRecord, news: News) -> None:
        """Tells browsers and the sender, after the commit."""
        if news.status is not None:
            self._events.publish("verdict", run=run.run_id, status=news.status, findings=news.findings)
        if news.messages:
            self._woken()

    def _enqueue(self, c: Connection, run: RunRecord, changes: Sequence[Change], now: float) -> int:
        open_channels = channels.listed(c)
        count = 0
        for change in changes:
            wanted = [ch for ch in open_channels if ch.wants(severity=change.severity, project=run.project)]
            if not wanted:
                continue
            if change.muted:
                alerts.add_event(
                    c, change.alert_id, AlertEvent(now, "muted", alerting.ENGINE, note=change.event)
                )
                continue
            body = self._messages.of(
                change,
                run=run,
                loss=loss_curve(c, run.id, change.finding.get("rank") or 0, points=Messages.CURVE_POINTS),
                onset_time=_onset_time(c, run, change.finding),
                now=now,
            )
            for channel in wanted:
                outbox.add(
                    c, channel=channel.id, alert=change.alert_id, event=change.event, body=body, now=now
                )
                count += 1
        return count


def worst_finding(findings: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The finding that decides a run's headline: worst first, then the earliest; none that is over, unless
    all are.
    """
    found = [f for f in findings if f.get("state") != "replaced"]
    standing = [f for f in found if f.get("state") != "recovered"] or found
    if not standing:
        return None
    return min(
        standing, key=lambda f: (-SEVERITY_ORDER.index(f.get("severity", "info")), f.get("onset_step") or 0)
    )


def _onset_time(c: Connection, run: RunRecord, finding: Mapping[str, Any]) -> float | None:
    step = finding.get("onset_step")
    return None if step is None else batches.time_of(c, run.id, step=step, rank=finding.get("rank") or 0)
