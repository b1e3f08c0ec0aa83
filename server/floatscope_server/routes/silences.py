"""Silences: which alerts nobody wants to hear of, and for how long."""

from __future__ import annotations

import secrets
import time
from datetime import datetime
from typing import Annotated, Any, Literal

import anyio.to_thread
from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection
from starlette.responses import Response

from floatscope.protocol.names import MAX_NAME_BYTES, RUN_ID_PATTERN
from floatscope_diagnostics.rule import FAMILY_OF
from floatscope_server.answers import Json
from floatscope_server.callers import By, Caller
from floatscope_server.errors import Refused
from floatscope_server.routes import fields
from floatscope_server.routes.alerts import NOTE_CHARS, unix
from floatscope_server.routes.fields import Cursor, Limit, ResourceId
from floatscope_server.services import Services, Use
from floatscope_server.store import audit, silences
from floatscope_server.store.silences import Silence
from floatscope_server.times import iso

router = APIRouter(tags=["silences"])

MAX_SILENCES = 1000  # that hold now or will
FAMILIES = tuple(sorted(set(FAMILY_OF.values())))


class SilenceIn(BaseModel):
    """A new silence. What is not given is any; a silence of everything needs an end.

    starts: without it now. ends: without it until somebody ends it. critical: whether critical alerts are
    held back as well.
    """

    model_config = ConfigDict(extra="forbid")

    run: Annotated[str | None, Field(pattern=f"^{RUN_ID_PATTERN}$")] = None
    project: Annotated[str | None, Field(min_length=1, max_length=MAX_NAME_BYTES)] = None
    family: str | None = None
    cause: str | None = None
    starts: datetime | None = None
    ends: datetime | None = None
    critical: bool = False
    note: Annotated[str, Field(max_length=NOTE_CHARS)] = ""


@router.get("/silences", response_class=Json)
def list_silences(
    services: Use,
    state: Annotated[Literal["waiting", "active", "ended"] | None, Query()] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """Silences, newest first; those that ended stay on record."""
    now = time.time()
    with services.database.read() as c:
        found = silences.listed(c, now=now, state=state, before=fields.cursor(cursor), limit=limit + 1)
    more = found[limit - 1].number if len(found) > limit else None
    items = [_shown(silence, now) for silence in found[:limit]]
    return Json({"items": items, "next_cursor": fields.next_cursor(more)})


@router.get("/silences/{silence_id}", response_class=Json)
def show_silence(silence_id: ResourceId, services: Use) -> Response:
    """One silence."""
    with services.database.read() as c:
        return Json(_shown(silences.get(c, silence_id), time.time()))


@router.post("/silences", openapi_extra=fields.body_of(SilenceIn), response_class=Json, status_code=201)
async def add_silence(request: Request, services: Use, by: By) -> Response:
    """Holds back messages about alerts of a run, project, family or cause, there are and there will be."""
    given = await fields.read_json(request, SilenceIn)
    silence = _checked(given, by, now=time.time())
    return await anyio.to_thread.run_sync(_add, services, silence, by)


@router.delete("/silences/{silence_id}", response_class=Json)
def end_silence(silence_id: ResourceId, services: Use, by: By) -> Response:
    """Ends a silence now. What it held back and still fires is told once. It stays on record."""
    now = time.time()
    with services.database.write() as c:
        silences.get(c, silence_id)
        if silences.end(c, silence_id, by=by.name, now=now):
            audit.write(c, by, "silence.end", target=silence_id, now=now)
        silence = silences.get(c, silence_id)
    services.crew.changes.tell("telling")
    return Json(_shown(silence, now))


def _checked(given: SilenceIn, by: Caller, *, now: float) -> Silence:
    """The silence, or Refused naming the field."""
    if given.project is not None:
        fields.name(given.project, field="project")
    for field, value, known in (("family", given.family, FAMILIES), ("cause", given.cause, tuple(FAMILY_OF))):
        if value is not None and value not in known:
            raise Refused(field, "one of " + ", ".join(known), fields.storable(value[:100]))
    starts = now if given.starts is None else unix(given.starts, field="starts")
    ends = None if given.ends is None else unix(given.ends, field="ends")
    if ends is not None and ends <= max(starts, now):
        raise Refused("ends", "a time after starts and after now", iso(ends))
    if ends is None and not any((given.run, given.project, given.family, given.cause)):
        raise Refused(
            "ends",
            "an end, since this silences every alert",
            "none",
            hint="name a run, project, family, cause",
        )
    return Silence(
        id=f"silence-{secrets.token_hex(6)}",
        run_id=given.run,
        project=given.project,
        family=given.family,
        cause=given.cause,
        starts=starts,
        ends=ends,
        critical=given.critical,
        note=fields.storable(given.note) or "",
        created=now,
        created_by=by.name,
    )


def _add(services: Services, silence: Silence, by: Caller) -> Response:
    with services.database.write() as c:
        _bound(c, silence.created)
        stored = silences.add(c, silence)
        detail = {k: v for k, v in _shown(stored, silence.created).items() if k not in ("id", "note")}
        audit.write(c, by, "silence.add", target=silence.id, detail=detail, now=silence.created)
    services.telling.apply_silences()
    services.crew.changes.tell("telling")
    return Json(_shown(stored, silence.created), status_code=201)


def _bound(c: Connection, now: float) -> None:
    if silences.not_ended(c, now=now) >= MAX_SILENCES:
        raise Refused(
            "silences",
            f"at most {MAX_SILENCES:,} that have not ended",
            "one more",
            hint="end some with DELETE /api/v1/silences/{id}",
            status=409,
        )


def _shown(silence: Silence, now: float) -> dict[str, Any]:
    return {
        "id": silence.id,
        "run": silence.run_id,
        "project": silence.project,
        "family": silence.family,
        "cause": silence.cause,
        "state": silence.state(now),
        "starts": iso(silence.starts),
        "ends": None if silence.ends is None else iso(silence.ends),
        "critical": silence.critical,
        "note": silence.note,
        "created": iso(silence.created),
        "created_by": silence.created_by,
        "ended_by": silence.ended_by,
    }
