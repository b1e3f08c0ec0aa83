"""Brings alerts under the silences that cover them now, and out of those that ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection

from floatscope_server.alerting import ENGINE, Touched, covering
from floatscope_server.store import alerts, silences, telling
from floatscope_server.store.alerts import AlertEvent, AlertRecord, Light
from floatscope_server.store.runs import RunRecord
from floatscope_server.store.silences import Silence
from floatscope_server.telling import states
from floatscope_server.telling.states import FIRING, SILENCED


@dataclass
class Moved:
    """What changed: alerts that fire again, to be told as if they began now, and the state of all."""

    touched: Touched = field(default_factory=Touched)
    states: dict[str, str] = field(default_factory=dict)


def runs_to_change(c: Connection, *, now: float) -> list[str]:
    """Ids of runs with an alert that a silence covers and that is not silenced, or the other way round."""
    active = silences.active(c, now=now)
    light = alerts.in_states(c, (FIRING, SILENCED) if active else (SILENCED,))
    return sorted({alert.run_id for alert in light if cover_of(active, alert) != alert.silence})


def bring_in_line(c: Connection, run: RunRecord, *, now: float) -> Moved:
    """Silences alerts of the run and ends silences, each with a line of history."""
    active = silences.active(c, now=now)
    moved = Moved()
    for alert in alerts.of_run(c, run.id, states=(FIRING, SILENCED), lock=True):
        cover = cover_of(active, alert)
        if cover == alert.silence:
            continue
        if cover is None:
            _release(c, alert, now)
            moved.states[alert.id] = FIRING
            moved.touched.begun.append(alert.id)
            moved.touched.changed.append(alert.id)
        else:
            _hold(c, alert, cover, now)
            moved.states[alert.id] = SILENCED
    return moved


def _hold(c: Connection, alert: AlertRecord, silence: str, now: float) -> None:
    at = states.after(alert.standing, "silenced")
    alerts.place(c, alert, at, now=now, silence=silence)
    note = f"by silence {silence}"
    alerts.add_event(c, alert.id, AlertEvent(now, "silenced", ENGINE, alert.state, at.state, note))
    telling.hush(c, [alert.id])


def _release(c: Connection, alert: AlertRecord, now: float) -> None:
    at = states.after(alert.standing, "silence_ended")
    alerts.place(c, alert, at, now=now)
    note = f"of silence {alert.silence}"
    alerts.add_event(c, alert.id, AlertEvent(now, "silence_ended", ENGINE, alert.state, at.state, note))
    telling.start_over(c, [alert.id], now=now)


def cover_of(active: Sequence[Silence], alert: AlertRecord | Light) -> str | None:
    """The id of the silence that covers the alert."""
    return covering(
        active,
        run_id=alert.run_id,
        project=alert.project,
        family=alert.family,
        cause=alert.cause,
        severity=alert.severity,
    )
