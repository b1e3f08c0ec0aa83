"""What became of the messages of a channel, and another try for those that were given up."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Path
from starlette.responses import Response

from floatscope_server.answers import Json
from floatscope_server.callers import By
from floatscope_server.errors import Problem
from floatscope_server.routes import fields
from floatscope_server.routes.fields import Cursor, Limit, ResourceId, Text
from floatscope_server.services import Use
from floatscope_server.store import audit, channels, sending
from floatscope_server.store.sending import STATES, Sending
from floatscope_server.times import iso

router = APIRouter(tags=["channels"])

Number = Annotated[int, Path(ge=1, le=2**31 - 1, description="Number of the delivery.")]


@router.get("/channels/{channel_id}/deliveries", response_class=Json)
def list_deliveries(
    channel_id: ResourceId, services: Use, state: Text = None, cursor: Cursor = None, limit: Limit = 100
) -> Response:
    """Messages of a channel, newest first; ``state`` takes pending, sent and dead, separated by commas."""
    with services.database.read() as c:
        channels.get(c, channel_id)
        found = sending.of_channel(
            c,
            channel_id,
            states=fields.listed(state, field="state", allowed=STATES),
            before=fields.cursor(cursor),
            limit=limit + 1,
        )
    more = found[limit - 1].id if len(found) > limit else None
    items = [_shown(item) for item in found[:limit]]
    return Json({"items": items, "next_cursor": fields.next_cursor(more)})


@router.post("/channels/{channel_id}/deliveries/{number}/retry", response_class=Json)
def retry_delivery(channel_id: ResourceId, number: Number, services: Use, by: By) -> Response:
    """Sends a message again that was given up, or one that waits without waiting longer."""
    now = time.time()
    with services.database.write() as c:
        channels.get(c, channel_id)
        item = sending.revive(c, channel_id, number, now=now)
        if item.state == "sent":
            raise Problem(
                409,
                "Delivered already",
                f"delivery {number} was taken by its receiver",
                hint="POST /api/v1/channels/{id}/test sends a message that only tests the channel",
            )
        detail = {"alert": item.alert, "event": item.event}
        audit.write(c, by, "channel.retry", target=f"{channel_id}/{number}", detail=detail, now=now)
    services.sender.changed(channel_id)
    return Json(_shown(item))


def _shown(item: Sending) -> dict[str, Any]:
    return {
        "number": item.id,
        "alert": item.alert,
        "event": item.event,
        "state": item.state,
        "attempts": item.attempts,
        "created": iso(item.created),
        "due": iso(item.due) if item.state == "pending" else None,
        "finished": None if item.finished is None else iso(item.finished),
        "error": item.error,
    }
