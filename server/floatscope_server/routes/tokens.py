"""Tokens: made, listed, ended. A token goes out once, in the answer that made it, and is not stored."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Annotated, Any, Literal

import anyio.to_thread
from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from floatscope.protocol.names import MAX_NAME_BYTES
from floatscope_server.access import digest_of, new_token
from floatscope_server.answers import Json
from floatscope_server.callers import ADMIN, By, Caller
from floatscope_server.errors import Problem, Refused
from floatscope_server.routes import fields
from floatscope_server.scopes import SCOPES
from floatscope_server.services import Services, Use
from floatscope_server.store import audit, tokens
from floatscope_server.store.tokens import TokenRecord
from floatscope_server.times import iso

router = APIRouter(tags=["tokens"])

MOST_TOKENS = 1000
TokenId = Annotated[str, Path(pattern=r"^[0-9a-f]{1,32}$", description="Id of the token.")]


class TokenIn(BaseModel):
    """A new token. ``expires``: when it ends; without it never."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=MAX_NAME_BYTES)
    scopes: list[Literal["ingest", "read", "write", "admin"]] = Field(min_length=1, max_length=len(SCOPES))
    expires: datetime | None = None


@router.get("/me", response_class=Json)
async def show_caller(by: By) -> Response:
    """Who this token or session is and what it may do."""
    scopes = [scope for scope in SCOPES if by.may(scope)]
    return Json({"name": by.name, "token": by.token, "scopes": scopes, "session": by.session})


@router.get("/tokens", response_class=Json)
def list_tokens(services: Use) -> Response:
    """All tokens, oldest first, with those that ended in the last 90 days."""
    now = time.time()
    with services.database.read() as c:
        found = tokens.listed(c)
    return Json({"items": [_shown(record, now) for record in found], "next_cursor": None})


@router.post("/tokens", openapi_extra=fields.body_of(TokenIn), response_class=Json, status_code=201)
async def add_token(request: Request, services: Use, by: By) -> Response:
    """Makes a token. The answer holds it, once: only its hash is kept."""
    given = await fields.read_json(request, TokenIn)
    fields.name(given.name, field="name")
    expires = None if given.expires is None else _later(given.expires)
    return await anyio.to_thread.run_sync(_add, services, by, given, expires)


def _add(services: Services, by: Caller, given: TokenIn, expires: float | None) -> Response:
    token, now = new_token(), time.time()
    scopes = [scope for scope in SCOPES if scope in given.scopes]
    with services.database.write() as c:
        if tokens.count(c) >= MOST_TOKENS:
            raise Problem(
                409,
                "Too many tokens",
                f"there are {MOST_TOKENS:,} tokens on record",
                hint="end tokens that are not used; they leave the list 90 days later",
            )
        record = tokens.add(
            c, digest_of(token), name=given.name, now=now, scopes=scopes, created_by=by.name, expires=expires
        )
        detail = {"name": record.name, "scopes": scopes, "expires": None if expires is None else iso(expires)}
        audit.write(c, by, "token.add", target=record.id, detail=detail, now=now)
    services.crew.changes.tell("tokens", record.id)
    return Json(_shown(record, now) | {"token": token}, status_code=201)


@router.delete("/tokens/{token_id}", response_class=Json)
def revoke_token(token_id: TokenId, services: Use, by: By) -> Response:
    """Ends a token and the browser sessions that were started with it. On this worker that is at once, on
    others within seconds.
    """
    now = time.time()
    with services.database.write() as c:
        admins = tokens.lasting_admins(c)
        record = tokens.find(c, token_id)
        if record is None:
            raise _unknown(token_id)
        if record.revoked is None:
            if [admin.id for admin in admins] == [token_id] and not services.access.has_environment_token:
                raise _last_admin()
            tokens.revoke(c, record.digest, now=now)
            audit.write(c, by, "token.revoke", target=token_id, detail={"name": record.name}, now=now)
            record = tokens.find(c, token_id) or record
    services.crew.changes.tell("tokens", record.id)
    return Json(_shown(record, now))


def _shown(record: TokenRecord, now: float) -> dict[str, Any]:
    def when(moment: float | None) -> str | None:
        return None if moment is None else iso(moment)

    return {
        "id": record.id,
        "name": record.name,
        "scopes": list(record.scopes),
        "state": record.state(now),
        "created": iso(record.created),
        "created_by": record.created_by,
        "expires": when(record.expires),
        "last_used": when(record.last_used),
        "revoked": when(record.revoked),
    }


def _later(moment: datetime) -> float:
    """Unix seconds of a time that is still to come; without a zone it counts as UTC."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)
    try:
        unix = aware.timestamp()
        datetime.fromtimestamp(unix, timezone.utc)  # an offset can carry a time beyond the years there are
    except (OverflowError, ValueError) as error:
        raise Refused("expires", "a time before the year 9999", moment.isoformat()) from error
    if unix <= time.time():
        raise Refused("expires", "a time that is still to come", moment.isoformat())
    return unix


def _unknown(token_id: str) -> Problem:
    return Problem(
        404,
        "Unknown token",
        f"there is no token {token_id!r}",
        field="token_id",
        expected="the id of a token, not the token",
        hint="GET /api/v1/tokens lists them",
    )


def _last_admin() -> Problem:
    return Problem(
        409,
        "The last admin token",
        f"without this token nobody could manage the server: no other token has the scope {ADMIN} and no end",
        field="token_id",
        expected="a token that is not the last of the administrators",
        hint="make another admin token without an end first, or start the server with FLOATSCOPE_TOKEN",
    )
