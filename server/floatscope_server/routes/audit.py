"""Who did what, when and from where."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from floatscope_server.answers import Json
from floatscope_server.errors import Refused
from floatscope_server.routes import fields
from floatscope_server.routes.fields import Cursor, Limit
from floatscope_server.services import Use
from floatscope_server.store import audit
from floatscope_server.times import iso

router = APIRouter(tags=["audit"])

Action = Annotated[
    str | None,
    Query(
        pattern=r"^[a-z_]+(\.[a-z_]+)?$", max_length=64, description="Such as token.add, or token for all."
    ),
]


@router.get("/audit", response_class=Json)
def list_audit(
    services: Use,
    action: Action = None,
    who: Annotated[str | None, Query(max_length=1024, description="Name of the token.")] = None,
    since: Annotated[datetime | None, Query(description="Then or later, ISO 8601.")] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """Acts, newest first. They are kept as long as the server's settings say."""
    with services.database.read() as c:
        found = audit.listed(
            c,
            action=action,
            who=None if who is None else fields.name(who, field="who"),
            since=None if since is None else _unix(since),
            before=fields.cursor(cursor),
            limit=limit + 1,
        )
    more = found[limit - 1].id if len(found) > limit else None
    items = [
        {
            "time": iso(record.time),
            "who": record.who,
            "token": record.token,
            "action": record.action,
            "target": record.target,
            "detail": dict(record.detail),
            "address": record.address,
        }
        for record in found[:limit]
    ]
    return Json({"items": items, "next_cursor": fields.next_cursor(more)})


def _unix(moment: datetime) -> float:
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)
    try:
        return aware.timestamp()
    except (OverflowError, ValueError) as error:
        raise Refused("since", "a time between the years 1970 and 9999", moment.isoformat()) from error
