"""What people do with an alert."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from floatscope_server.alerting import OVER
from floatscope_server.errors import AlertNotFound
from floatscope_server.store import alerts, runs, silences, telling
from floatscope_server.store.alerts import AlertEvent, AlertRecord, Move
from floatscope_server.store.runs import RunRecord
from floatscope_server.store.silences import Silence
from floatscope_server.telling import states
from floatscope_server.telling.decide import NEW
from floatscope_server.telling.silencing import cover_of
from floatscope_server.telling.states import ACKNOWLEDGED, FIRING, RECOVERED, RESOLVED, SILENCED
from floatscope_server.telling.teller import Teller
from floatscope_server.telling.undoing import Step, way_back


@dataclass(frozen=True)
class Action:
    """event: one of PEOPLE_EVENTS. by: who. sets_mute: whether mute_until (None: messages again) is meant.
    expected: alerts in another state are left as they are; None: in any state.
    """

    event: str
    by: str
    note: str | None = None
    sets_mute: bool = False
    mute_until: float | None = None
    expected: str | None = None


@dataclass(frozen=True)
class Done:
    """What became of one alert: its state before and after, and the way back. muted: until when its messages
    were held back before.  is_done: False where it was not in the state that was expected.
    """

    alert_id: str
    run_id: str
    before: str
    after: str
    way_back: tuple[Step, ...] = ()
    muted: float | None = None
    is_done: bool = True


def act(c: Connection, teller: Teller, alert_id: str, action: Action, *, now: float) -> AlertRecord:
    """Does it, with a line of history whatever it changes. Raises AlertNotFound."""
    if not act_on(c, teller, [alert_id], action, now=now):
        raise AlertNotFound(alert_id)
    return alerts.get(c, alert_id)


def act_on(
    c: Connection, teller: Teller, alert_ids: Collection[str], action: Action, *, now: float
) -> list[Done]:
    """Does the same to all of these alerts that are there, in the order in which they were made."""
    locked = (runs.find(c, run_id, lock=True) for run_id in alerts.runs_of(c, alert_ids))
    run_of = {run.id: run for run in locked if run is not None}  # the runs' locks first, as with batches
    found = [one for one in alerts.of_ids(c, alert_ids, lock=True).values() if one.run in run_of]
    if not found:
        return []
    others = [one for one in found if action.expected not in (None, one.state)]
    found = [one for one in found if action.expected in (None, one.state)]
    active = silences.active(c, now=now)
    moves = [_moved(alert, action, active) for alert in found]
    alerts.place_all(c, moves, now=now)
    if action.sets_mute:
        alerts.mute(c, [alert.id for alert in found], action.mute_until)
    if moves:
        alerts.add_events(c, ((move.before.id, _line(move, action, now)) for move in moves))
    _tell(c, teller, moves, run_of, action, now=now)
    left = (Done(one.id, one.run_id, one.state, one.state, is_done=False) for one in others)
    return [*(_done(move, active) for move in moves), *left]


def _done(move: Move, active: Sequence[Silence]) -> Done:
    alert = move.before
    way = way_back(
        *(alert.standing, move.standing),
        covered=cover_of(active, alert) is not None,
        is_past=alert.finding_state == RECOVERED,
    )
    return Done(alert.id, alert.run_id, alert.state, move.standing.state, way, alert.mute_until)


def _moved(alert: AlertRecord, action: Action, active: Sequence[Silence]) -> Move:
    cover = cover_of(active, alert) if action.event == "reopen" else alert.silence
    at = states.after(
        *(alert.standing, action.event),
        covered=cover is not None,
        is_past=alert.finding_state == RECOVERED,
    )
    return Move(alert, at, cover)


def _line(move: Move, action: Action, now: float) -> AlertEvent:
    return AlertEvent(now, action.event, action.by, move.before.state, move.standing.state, action.note)


def _tell(
    c: Connection,
    teller: Teller,
    moves: Sequence[Move],
    run_of: Mapping[int, RunRecord],
    action: Action,
    *,
    now: float,
) -> None:
    """What channels may have to hear of it."""
    closed = [m.before.id for m in moves if m.standing.state in (ACKNOWLEDGED, RESOLVED, SILENCED)]
    opened = [m.before for m in moves if m.standing.state == FIRING and m.before.state != FIRING]
    if closed:
        telling.hush(c, closed)
    for run in run_of.values():
        its = [alert.id for alert in opened if alert.run == run.id]
        if its:
            teller.open_lines(c, run, its)
    anew: list[str] = []
    known: list[str] = []
    for alert in opened:
        goes_on = alert.state == RESOLVED and alert.finding_state not in OVER
        (anew if goes_on else known).append(alert.id)
    if anew:
        telling.start_over(c, anew, now=now, waited_for=NEW)
    if known:
        telling.reopened(c, known, now=now)
    if action.sets_mute:
        told = {*closed, *(alert.id for alert in opened)}
        telling.look_again(c, [m.before.id for m in moves if m.before.id not in told], now=now)
