"""Alerts: list, show, and what a person does with one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Annotated, Any, Literal

import anyio.to_thread
from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection
from starlette.responses import Response

from floatscope.protocol.names import RUN_ID_PATTERN
from floatscope_server.answers import Json
from floatscope_server.errors import Refused
from floatscope_server.routes import fields
from floatscope_server.routes.fields import Cursor, Limit, ResourceId, Text
from floatscope_server.services import Services, Use
from floatscope_server.store import alerts, outbox
from floatscope_server.store.alerts import AlertEvent, AlertRecord
from floatscope_server.telling.states import SEVERITIES, STATES
from floatscope_server.times import iso

router = APIRouter(tags=["alerts"])

PERSON = "user"
NOTE_CHARS = 4000
STATE_AFTER = {
    "acknowledge": "acknowledged",
    "resolve": "resolved",
    "reopen": "firing",
    "not_the_cause": "resolved",
}
"""State of an alert after an action; a note changes none."""


class AlertAction(BaseModel):
    """What a person does with an alert.

    ``mute_until``: no messages about it before then; null: messages again.
    """

    model_config = ConfigDict(extra="forbid")

    action: Literal["acknowledge", "resolve", "reopen", "note", "not_the_cause"]
    note: str | None = Field(default=None, max_length=NOTE_CHARS)
    mute_until: datetime | None = None


@router.get("/alerts", response_class=Json)
def list_alerts(
    services: Use,
    run: Annotated[str | None, Query(pattern=f"^{RUN_ID_PATTERN}$")] = None,
    family: Text = None,
    cause: Text = None,
    severity: Text = None,
    state: Text = None,
    since: Annotated[datetime | None, Query(description="Last seen then or later, ISO 8601.")] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """Alerts, newest first. A filter takes several values, separated by commas."""
    with services.database.read() as c:
        found = alerts.listed(
            c,
            run_id=run,
            family=fields.listed(family, field="family"),
            cause=fields.listed(cause, field="cause"),
            severity=fields.listed(severity, field="severity", allowed=SEVERITIES),
            state=fields.listed(state, field="state", allowed=STATES),
            since=None if since is None else _unix(since, field="since"),
            before=fields.cursor(cursor),
            limit=limit + 1,
        )
        more = found[limit - 1].number if len(found) > limit else None
        items = _shown(c, found[:limit])
    return Json({"items": items, "next_cursor": fields.next_cursor(more)})


@router.get("/alerts/{alert_id}", response_class=Json)
def show_alert(alert_id: ResourceId, services: Use) -> Response:
    """One alert with its history and what became of its messages."""
    with services.database.read() as c:
        (item,) = _shown(c, [alerts.get(c, alert_id)])
    return Json(item)


@router.patch("/alerts/{alert_id}", openapi_extra=fields.body_of(AlertAction), response_class=Json)
async def act_on_alert(request: Request, alert_id: ResourceId, services: Use) -> Response:
    """Acknowledge, resolve, reopen, note, or say that this is not the cause."""
    action = await fields.read_json(request, AlertAction)
    if action.action == "note" and not (action.note or "").strip():
        raise Refused("note", "a text", "nothing")
    return await anyio.to_thread.run_sync(_act, services, alert_id, action)


def _act(services: Services, alert_id: str, action: AlertAction) -> Response:
    now = time.time()
    note = (
        None if action.note is None else action.note.encode("utf-8", "replace").decode().replace("\x00", "")
    )
    with services.database.write() as c:
        alert = alerts.get(c, alert_id)
        after = STATE_AFTER.get(action.action, alert.state)
        if after != alert.state:
            alerts.set_state(c, alert_id, after)
        if "mute_until" in action.model_fields_set:
            until = None if action.mute_until is None else _unix(action.mute_until, field="mute_until")
            alerts.mute(c, alert_id, until)
        alerts.add_event(c, alert_id, AlertEvent(now, action.action, PERSON, alert.state, after, note))
        (item,) = _shown(c, [alerts.get(c, alert_id)])
    services.events.publish("alert", run=alert.run_id, alert=alert_id, state=after)
    return Json(item)


def _shown(c: Connection, found: Sequence[AlertRecord]) -> list[dict[str, Any]]:
    """Alerts as the API shows them: flat, the finding's fields beside the alert's own."""
    ids = [alert.id for alert in found]
    history, deliveries = alerts.history(c, ids), outbox.deliveries(c, ids)
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
            "mute_until": None if alert.mute_until is None else iso(alert.mute_until),
            "history": [
                {
                    "time": iso(event.time),
                    "event": event.event,
                    "by": event.by,
                    "before": event.before,
                    "after": event.after,
                    "note": event.note,
                }
                for event in history[alert.id]
            ],
            "deliveries": [
                {
                    "channel": delivery.channel,
                    "event": delivery.event,
                    "state": delivery.state,
                    "attempts": delivery.attempts,
                    "created": iso(delivery.created),
                    "finished": None if delivery.finished is None else iso(delivery.finished),
                    "error": delivery.error,
                }
                for delivery in deliveries[alert.id]
            ],
        }
        for alert in found
    ]


def _unix(moment: datetime, *, field: str) -> float:
    """Unix seconds; a time without a zone counts as UTC."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)
    try:
        unix = aware.timestamp()
        datetime.fromtimestamp(unix, timezone.utc)  # an offset can carry a time beyond the years there are
    except (OverflowError, ValueError) as error:
        raise Refused(field, "a time between the years 1970 and 9999", moment.isoformat()) from error
    return unix
