"""Alerts: list, show, and what a person does with one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Annotated, Any, Literal

import anyio.to_thread
from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection
from starlette.responses import Response

from floatscope.protocol.names import RUN_ID_PATTERN
from floatscope_server.answers import Json
from floatscope_server.callers import By, Caller
from floatscope_server.errors import Refused
from floatscope_server.routes import fields
from floatscope_server.routes.fields import Cursor, Limit, ResourceId, Text
from floatscope_server.services import Services, Use
from floatscope_server.store import alerts, outbox, silences
from floatscope_server.store.alerts import AlertEvent, AlertRecord
from floatscope_server.store.outbox import Delivery
from floatscope_server.store.silences import Silence
from floatscope_server.telling import actions
from floatscope_server.telling.actions import Action, Done
from floatscope_server.telling.states import SEVERITIES, STATES
from floatscope_server.times import iso

router = APIRouter(tags=["alerts"])

NOTE_CHARS = 4000
LISTED_LINES, LISTED_DELIVERIES = 50, 10  # of each alert in a list: the newest
SHOWN_LINES, SHOWN_DELIVERIES = 2000, 200  # of one alert
MOST_AT_ONCE = 2000  # alerts of one request


AlertId = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,160}$")]


class AlertAction(BaseModel):
    """What a person does with an alert.

    ``mute_until``: no messages about it before then; null: messages again.
    """

    model_config = ConfigDict(extra="forbid")

    action: Literal["acknowledge", "resolve", "reopen", "note", "not_the_cause"]
    note: str | None = Field(default=None, max_length=NOTE_CHARS)
    mute_until: datetime | None = None


class AlertActions(AlertAction):
    """The same for many alerts. Any that is named twice counts once. ``expected``: alerts in another state
    are left as they are, and said.
    """

    alerts: Annotated[list[AlertId], Field(min_length=1, max_length=MOST_AT_ONCE)]
    expected: Literal["firing", "acknowledged", "resolved", "recovered", "silenced"] | None = None


@router.get("/alerts", response_class=Json)
def list_alerts(
    services: Use,
    run: Annotated[str | None, Query(pattern=f"^{RUN_ID_PATTERN}$")] = None,
    project: Text = None,
    family: Text = None,
    cause: Text = None,
    severity: Text = None,
    state: Text = None,
    since: Annotated[datetime | None, Query(description="Last seen then or later, ISO 8601.")] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """Alerts, newest first. ``family``, ``cause``, ``severity`` and ``state`` take several values, separated
    by commas. Of each alert only the newest lines of history and deliveries are listed. ``firing``: how
    many alerts fire now that nobody has acknowledged, of all runs.
    """
    with services.database.read() as c:
        found = alerts.listed(
            c,
            run_id=run,
            project=None if project is None else fields.name(project, field="project"),
            family=fields.listed(family, field="family"),
            cause=fields.listed(cause, field="cause"),
            severity=fields.listed(severity, field="severity", allowed=SEVERITIES),
            state=fields.listed(state, field="state", allowed=STATES),
            since=None if since is None else unix(since, field="since"),
            before=fields.cursor(cursor),
            limit=limit + 1,
        )
        more = found[limit - 1].number if len(found) > limit else None
        items = _shown(c, found[:limit], lines=LISTED_LINES, deliveries=LISTED_DELIVERIES)
        firing = alerts.count_firing(c)
    return Json({"items": items, "next_cursor": fields.next_cursor(more), "firing": firing})


@router.get("/alerts/{alert_id}", response_class=Json)
def show_alert(alert_id: ResourceId, services: Use) -> Response:
    """One alert with its history and what became of its messages."""
    with services.database.read() as c:
        (item,) = _shown(c, [alerts.get(c, alert_id)])
    return Json(item)


@router.patch("/alerts/{alert_id}", openapi_extra=fields.body_of(AlertAction), response_class=Json)
async def act_on_alert(request: Request, alert_id: ResourceId, services: Use, by: By) -> Response:
    """Acknowledge, resolve, reopen, note, or say that this is not the cause."""
    wanted = _checked(await fields.read_json(request, AlertAction), by)
    return await anyio.to_thread.run_sync(_act, services, alert_id, wanted)


@router.post("/alerts/actions", openapi_extra=fields.body_of(AlertActions), response_class=Json)
async def act_on_alerts(request: Request, services: Use, by: By) -> Response:
    """Does the same to many alerts at once, all in one transaction, and says of each what became of it.
    Alerts that are not there are said and stop nothing. ``undo`` of each is the way back: what to send, one
    after the other, so that the alert stands as before; none where nothing changed.
    """
    given = await fields.read_json(request, AlertActions)
    ids = tuple(dict.fromkeys(given.alerts))
    action = replace(_checked(given, by), expected=given.expected)
    return await anyio.to_thread.run_sync(_act_on, services, ids, action)


def _checked(given: AlertAction, by: Caller) -> Action:
    """The action, or Refused naming the field."""
    if given.action == "note" and not (given.note or "").strip():
        raise Refused("note", "a text", "nothing")
    until = None if given.mute_until is None else unix(given.mute_until, field="mute_until")
    return Action(
        event=given.action,
        by=by.name,
        note=fields.storable(given.note),
        sets_mute="mute_until" in given.model_fields_set,
        mute_until=until,
    )


def _act_on(services: Services, alert_ids: Sequence[str], action: Action) -> Response:
    with services.database.write() as c:
        done = actions.act_on(c, services.telling.teller, alert_ids, action, now=time.time())
    became = {one.alert_id: one for one in done}
    done = [one for one in done if one.is_done]
    for one in {one.run_id: one for one in done}.values():  # pages read the whole list again at one event
        services.events.publish("alert", run=one.run_id, alert=one.alert_id, state=one.after)
    if done:
        services.crew.changes.tell("telling")
    items = [_became(alert_id, became.get(alert_id), action) for alert_id in alert_ids]
    return Json({"done": len(done), "failed": len(items) - len(done), "items": items})


def _became(alert_id: str, done: Done | None, action: Action) -> dict[str, Any]:
    if done is None:
        return {
            "id": alert_id,
            "before": None,
            "after": None,
            "error": "there is no such alert",
            "undo": [],
        }
    error = None if done.is_done else f"it is {done.before} by now"
    undo: list[dict[str, Any]] = [{"action": one.event, "expected": one.expected} for one in done.way_back]
    if undo and action.sets_mute:
        undo[-1]["mute_until"] = _iso(done.muted)
    return {"id": alert_id, "before": done.before, "after": done.after, "error": error, "undo": undo}


def _act(services: Services, alert_id: str, action: Action) -> Response:
    with services.database.write() as c:
        alert = actions.act(c, services.telling.teller, alert_id, action, now=time.time())
        (item,) = _shown(c, [alert])
    services.events.publish("alert", run=alert.run_id, alert=alert_id, state=alert.state)
    services.crew.changes.tell("telling")
    return Json(item)


def _shown(
    c: Connection,
    found: Sequence[AlertRecord],
    *,
    lines: int = SHOWN_LINES,
    deliveries: int = SHOWN_DELIVERIES,
) -> list[dict[str, Any]]:
    """Alerts as the API shows them: flat, the finding's fields beside the alert's own."""
    ids = [alert.id for alert in found]
    history = alerts.history(c, ids, newest=lines)
    told = outbox.deliveries(c, ids, newest=deliveries)
    silenced_by = silences.of_ids(c, {alert.silence for alert in found if alert.silence is not None})
    return [
        {
            **alert.finding,
            "id": alert.id,
            "run_id": alert.run_id,
            "project": alert.project,
            "state": alert.state,
            "finding_state": alert.finding_state,
            "first_seen": iso(alert.first_seen),
            "last_seen": iso(alert.last_seen),
            "firing_since": _iso(alert.firing_since),
            "mute_until": _iso(alert.mute_until),
            "silence": _silence(silenced_by.get(alert.silence or "")),
            "history": [_line(event) for event in history[alert.id]],
            "deliveries": [_delivery(delivery) for delivery in told[alert.id]],
        }
        for alert in found
    ]


def _line(event: AlertEvent) -> dict[str, Any]:
    return {
        "time": iso(event.time),
        "event": event.event,
        "by": event.by,
        "before": event.before,
        "after": event.after,
        "note": event.note,
    }


def _delivery(delivery: Delivery) -> dict[str, Any]:
    return {
        "channel": delivery.channel,
        "event": delivery.event,
        "state": delivery.state,
        "attempts": delivery.attempts,
        "created": iso(delivery.created),
        "finished": _iso(delivery.finished),
        "error": delivery.error,
    }


def _silence(silence: Silence | None) -> dict[str, Any] | None:
    if silence is None:
        return None
    return {
        "id": silence.id,
        "ends": _iso(silence.ends),
        "note": silence.note,
        "created_by": silence.created_by,
    }


def _iso(moment: float | None) -> str | None:
    return None if moment is None else iso(moment)


def unix(moment: datetime, *, field: str) -> float:
    """Unix seconds; a time without a zone counts as UTC."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)
    try:
        unix = aware.timestamp()
        datetime.fromtimestamp(unix, timezone.utc)  # an offset can carry a time beyond the years there are
    except (OverflowError, ValueError) as error:
        raise Refused(field, "a time between the years 1970 and 9999", moment.isoformat()) from error
    return unix
