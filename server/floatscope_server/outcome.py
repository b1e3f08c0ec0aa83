"""What follows from a judgement: verdict, the run's headline, alerts and messages, all in the caller's
transaction.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from floatscope_server import alerting, rule_effects
from floatscope_server.alerting import Findings
from floatscope_server.diagnosis import Judgement, describe
from floatscope_server.events import Events
from floatscope_server.store import alerts, runs, verdicts
from floatscope_server.store.runs import RunRecord
from floatscope_server.telling.teller import Teller

_log = logging.getLogger(__name__)

SEVERITY_ORDER = ("info", "warning", "critical")
SEEN_S = 10.0  # that an unchanged finding was seen again is noted this often, not with every batch
REMEMBERED = 512  # runs whose findings are kept, so that a batch that changes none asks nothing


@dataclass(frozen=True)
class _Applied:
    """Findings that the alerts of a run were brought in line with, at a version of the run."""

    version: int
    findings: Findings
    seen: float


@dataclass(frozen=True)
class News:
    """What readers are told once the transaction is through."""

    status: str | None = None
    findings: int = 0
    messages: int = 0
    alerts: int = 0
    applied: _Applied | None = None


class Outcome:
    """Stores judgements. ``woken`` is called after a commit that left messages to send, ``changed`` after one
    that left alerts of which something may have to be told later.
    """

    def __init__(
        self, *, teller: Teller, events: Events, woken: Callable[[], None], changed: Callable[[], None]
    ) -> None:
        self._teller = teller
        self._events = events
        self._woken = woken
        self._changed = changed
        self._guard = threading.Lock()
        self._applied: OrderedDict[int, _Applied] = OrderedDict()

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
                news = News()  # nothing of it was stored
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
            "judged_steps": body.get("source", {}).get("steps"),
        }
        runs.change(c, run.id, headline)
        verdicts.save(c, run.id, body, now=now)
        before = self._before(run)
        found = alerting.by_id(rule_effects.alerting_findings(body))
        touched = alerting.apply(
            c,
            run=run,
            findings=found,
            before=None if before is None else before.findings,
            now=now,
            gone_because=rule_effects.why_gone(run.baseline_arrivals),
        )
        seen = now if before is None else before.seen
        if not 0.0 <= now - seen < SEEN_S and any(f.get("state") not in alerting.OVER for f in findings):
            alerts.seen(c, run.id, now=now, over=alerting.OVER)
            seen = now
        sent = self._teller.tell(c, run, touched, now=now) if touched.changed else 0
        applied = _Applied(run.version + 1, found, seen)
        return News(body["status"], len(findings), sent, len(touched.changed), applied)

    def tell(self, run: RunRecord, news: News) -> None:
        """Tells browsers and the sender, after the commit."""
        if news.applied is not None:
            self._remember(run.id, news.applied)
        if news.status is not None:
            self._events.publish("verdict", run=run.run_id, status=news.status, findings=news.findings)
        if news.messages:
            self._woken()
        if news.alerts:
            self._changed()

    def _before(self, run: RunRecord) -> _Applied | None:
        """What the alerts are in line with, if nobody else has judged the run since."""
        with self._guard:
            found = self._applied.get(run.id)
        return found if found is not None and found.version == run.version else None

    def _remember(self, run: int, applied: _Applied) -> None:
        with self._guard:
            self._applied[run] = applied
            self._applied.move_to_end(run)
            while len(self._applied) > REMEMBERED:
                self._applied.popitem(last=False)


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
