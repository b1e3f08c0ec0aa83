"""What people do with an alert."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from floatscope_server.alerting import OVER
from floatscope_server.errors import AlertNotFound
from floatscope_server.store import alerts, runs, silences, telling
from floatscope_server.store.alerts import AlertEvent, AlertRecord
from floatscope_server.telling import states
from floatscope_server.telling.decide import NEW
from floatscope_server.telling.silencing import cover_of
from floatscope_server.telling.states import ACKNOWLEDGED, FIRING, RESOLVED, SILENCED, Standing
from floatscope_server.telling.teller import Teller


@dataclass(frozen=True)
class Action:
    """event: one of PEOPLE_EVENTS. by: who. sets_mute: whether mute_until (None: messages again) is meant."""

    event: str
    by: str
    note: str | None = None
    sets_mute: bool = False
    mute_until: float | None = None


def act(c: Connection, teller: Teller, alert_id: str, action: Action, *, now: float) -> AlertRecord:
    """Does it, with a line of history whatever it changes. Raises AlertNotFound."""
    run = runs.find(c, alerts.get(c, alert_id).run_id, lock=True)  # the run's lock first, as with batches
    if run is None:
        raise AlertNotFound(alert_id)
    alert = alerts.get(c, alert_id, lock=True)
    is_reopened = action.event == "reopen"
    cover = cover_of(silences.active(c, now=now), alert) if is_reopened else alert.silence
    at = states.after(alert.standing, action.event, covered=cover is not None)
    alerts.place(c, alert, at, now=now, silence=cover)
    if action.sets_mute:
        alerts.mute(c, alert_id, action.mute_until)
    event = AlertEvent(now, action.event, action.by, alert.state, at.state, action.note)
    alerts.add_event(c, alert_id, event)
    if at.state in (ACKNOWLEDGED, RESOLVED, SILENCED):
        telling.hush(c, [alert_id])
    elif _fires_again(alert, at):
        teller.open_lines(c, run, [alert_id])
        if alert.state == RESOLVED and alert.finding_state not in OVER:
            telling.start_over(c, [alert_id], now=now, waited_for=NEW)
        else:
            telling.reopened(c, [alert_id], now=now)
    elif action.sets_mute:
        telling.look_again(c, [alert_id], now=now)
    return alerts.get(c, alert_id)


def _fires_again(alert: AlertRecord, at: Standing) -> bool:
    return at.state == FIRING and alert.state != FIRING
