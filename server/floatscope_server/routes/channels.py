"""Channels by which people are told. The address of a channel and its secret go in and never come out; a
secret that the server made is shown once, in the answer that made it.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Literal

import anyio.to_thread
from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, SecretStr
from sqlalchemy import Connection
from starlette.responses import Response

from floatscope.protocol.names import MAX_NAME_BYTES
from floatscope_server.answers import Json
from floatscope_server.callers import By, Caller
from floatscope_server.errors import Problem, Refused
from floatscope_server.notify import posting, signing
from floatscope_server.notify.environment import CHANNEL_ID as FROM_SETTINGS
from floatscope_server.notify.targets import WebhookRefused
from floatscope_server.notify.webhook import DeliveryFailed
from floatscope_server.routes import fields
from floatscope_server.routes.alerts import unix
from floatscope_server.routes.fields import ResourceId
from floatscope_server.services import Services, Use
from floatscope_server.store import audit, channels, sending, telling
from floatscope_server.store.channels import ChannelRecord
from floatscope_server.telling.quiet_hours import QuietHours
from floatscope_server.telling.terms import check_escalate_s, check_repeat_s
from floatscope_server.times import iso

router = APIRouter(tags=["channels"])

MAX_PROJECTS = 100
MAX_CHANNELS = 200

Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_BYTES)]
Severity = Literal["info", "warning", "critical"]
Projects = Annotated[list[Name], Field(max_length=MAX_PROJECTS)]


class ChannelIn(BaseModel):
    """A new channel.

    url: a webhook's address, or for ``apprise`` an address as that library writes them.  secret: signs the
    messages of a ``webhook``; without it the server makes one.  projects: empty for all.  repeat_s: tells
    again of what nobody acknowledged; escalate_s: tells only of what nobody acknowledged for so long; quiet:
    ``{"zone", "from", "to", "days"}``, hours in which only critical alerts are told.
    """

    model_config = ConfigDict(extra="forbid")

    kind: Literal["slack", "webhook", "apprise"]
    name: Name
    url: SecretStr
    secret: SecretStr | None = None
    min_severity: Severity = "warning"
    projects: Projects = Field(default_factory=list)
    repeat_s: float | None = None
    escalate_s: float | None = None
    quiet: dict[str, Any] | None = None


class ChannelChange(BaseModel):
    """What changes of a channel; what is not given stays. ``new_secret``: the server makes another one.

    as_of: ``updated`` of the channel as the caller read it. The answer is 409 if it was changed since.
    """

    model_config = ConfigDict(extra="forbid")

    name: Name | None = None
    url: SecretStr | None = None
    secret: SecretStr | None = None
    new_secret: bool = False
    min_severity: Severity | None = None
    projects: Projects | None = None
    enabled: bool | None = None
    repeat_s: float | None = None
    escalate_s: float | None = None
    quiet: dict[str, Any] | None = None
    as_of: datetime | None = None


@router.get("/channels", response_class=Json)
def list_channels(services: Use) -> Response:
    """All channels."""
    with services.database.read() as c:
        found = channels.listed(c)
    return Json({"items": [_shown(services, channel) for channel in found], "next_cursor": None})


@router.get("/channels/{channel_id}", response_class=Json)
def show_channel(channel_id: ResourceId, services: Use) -> Response:
    """One channel, without its address and its secret."""
    with services.database.read() as c:
        return Json(_shown(services, channels.get(c, channel_id)))


@router.post("/channels", openapi_extra=fields.body_of(ChannelIn), response_class=Json, status_code=201)
async def add_channel(request: Request, services: Use, by: By) -> Response:
    """Adds a channel. Its address must resolve to a public one unless private ones are allowed."""
    given = await fields.read_json(request, ChannelIn, show_input=False)
    return await anyio.to_thread.run_sync(_add, services, by, given)


@router.patch("/channels/{channel_id}", openapi_extra=fields.body_of(ChannelChange), response_class=Json)
async def change_channel(request: Request, channel_id: ResourceId, services: Use, by: By) -> Response:
    """Changes a channel, also its address or its secret; ``"enabled": false`` switches it off."""
    given = await fields.read_json(request, ChannelChange, show_input=False)
    return await anyio.to_thread.run_sync(_change, services, by, channel_id, given)


@router.delete("/channels/{channel_id}", response_class=Json)
def remove_channel(channel_id: ResourceId, services: Use, by: By) -> Response:
    """Deletes a channel with its address, its secret and its deliveries."""
    with services.database.write() as c:
        record = channels.get(c, channel_id, lock=True)
        if channel_id == FROM_SETTINGS:
            raise Problem(
                409,
                "Channel of the settings",
                "this channel comes from FLOATSCOPE_SLACK_WEBHOOK_URL and would be back at the next start",
                hint='take that setting away, or send PATCH with "enabled": false',
            )
        channels.remove(c, channel_id)
        _write_audit(c, by, "channel.remove", record)
    return Json(_shown(services, replace(record, enabled=False)))


@router.post("/channels/{channel_id}/test", response_class=Json)
def test_channel(channel_id: ResourceId, services: Use, by: By) -> Response:
    """Sends one message now and says what happened: whether it arrived, the status, how long it took."""
    with services.database.write() as c:
        channel = channels.get(c, channel_id)
        _write_audit(c, by, "channel.test", channel)
    body = services.messages.test(channel)
    error, status = None, None
    with services.sender.test_slot() as free:
        if not free:
            detail = "several tests of channels are under way"
            raise Problem(429, "Busy", detail, hint="send it again", headers={"Retry-After": "10"})
        began = time.monotonic()
        try:
            status = services.sender.send(channel, body, delivery=f"test-{secrets.token_hex(8)}")
        except DeliveryFailed as failure:
            error, status = str(failure), failure.status
        took = round(time.monotonic() - began, 3)
    return Json({"delivered": error is None, "status": status, "took_s": took, "error": error})


def _add(services: Services, by: Caller, given: ChannelIn) -> Response:
    _check_names(given.name, given.projects)
    url, now = given.url.get_secret_value(), time.time()
    key, made = _key(given.kind, given.secret, new=True)
    record = ChannelRecord(
        id=f"{given.kind}-{secrets.token_hex(6)}",
        kind=given.kind,
        name=given.name,
        url=url,
        min_severity=given.min_severity,
        projects=tuple(given.projects),
        enabled=True,
        created=now,
        signing_key=key,
        repeat_s=check_repeat_s(given.repeat_s),
        escalate_s=check_escalate_s(given.escalate_s),
        quiet=None if given.quiet is None else QuietHours.of_json(given.quiet),
    )
    _check_url(services, given.kind, url)
    with services.database.write() as c:
        if channels.count(c) >= MAX_CHANNELS:
            raise Problem(409, "Too many channels", f"there are {MAX_CHANNELS}", hint="delete one first")
        channels.put(c, record)
        _write_audit(c, by, "channel.add", record)
    return Json(_shown(services, record) | made, status_code=201)


def _change(services: Services, by: Caller, channel_id: str, given: ChannelChange) -> Response:
    _check_names(given.name or "name", given.projects or [])
    with services.database.read() as c:
        kind = channels.get(c, channel_id).kind
    changes: dict[str, Any] = {
        name: value
        for name in ("name", "min_severity", "enabled")
        if (value := getattr(given, name)) is not None
    }
    if given.projects is not None:
        changes["projects"] = tuple(given.projects)
    if given.url is not None:
        if channel_id == FROM_SETTINGS:
            raise Refused("url", "none: it comes from FLOATSCOPE_SLACK_WEBHOOK_URL", "an address")
        changes["url"] = given.url.get_secret_value()
    key, made = _key(kind, given.secret, new=given.new_secret)
    if key is not None:
        changes["signing_key"] = key
    if "repeat_s" in given.model_fields_set:
        changes["repeat_s"] = check_repeat_s(given.repeat_s)
    if "escalate_s" in given.model_fields_set:
        changes["escalate_s"] = check_escalate_s(given.escalate_s)
    if "quiet" in given.model_fields_set:
        changes["quiet"] = None if given.quiet is None else QuietHours.of_json(given.quiet)
    if "url" in changes:
        _check_url(services, kind, changes["url"])
    with services.database.write() as c:
        known, now = channels.get(c, channel_id, lock=True), time.time()
        if "as_of" in given.model_fields_set:
            _check_as_of(known, given.as_of)
        record = replace(known, updated=now, updated_by=fields.storable(by.name), **changes)
        channels.put(c, record)
        if given.enabled is False:  # what it would say when it is switched on again would be old news
            sending.give_up_all(c, channel_id, error="the channel was switched off", now=now)
        sending.hurry(c, channel_id, now=now)
        telling.look_again_at_channel(c, channel_id, now=now)
        _write_audit(c, by, "channel.change", record, fields=sorted(changes))
    services.telling.wake()
    services.sender.changed(channel_id)
    return Json(_shown(services, record) | made)


def _check_as_of(known: ChannelRecord, as_of: datetime | None) -> None:
    """Raises Problem if somebody changed the channel since the caller read it."""
    read = None if as_of is None else iso(unix(as_of, field="as_of"))
    last = None if known.updated is None else iso(known.updated)
    if read != last:
        raise Problem(
            409,
            "Changed meanwhile",
            f"{known.updated_by or 'somebody'} changed the channel at {last or 'a time that is not known'}",
            field="as_of",
            hint="read the channel again, and send what is to change with its updated as as_of",
        )


def _check_names(name: str, projects: list[str]) -> None:
    fields.name(name, field="name")
    for index, project in enumerate(projects):
        fields.name(project, field=f"projects.{index}")


def _check_url(services: Services, kind: str, url: str) -> None:
    try:
        posting.check(kind, url, allow_private=services.settings.allow_private_webhooks)
    except WebhookRefused as error:
        expected = "an address that this server may call"
        raise Refused("url", expected, f"another ({error})", hint=str(error)) from None
    except DeliveryFailed as error:
        raise Refused("url", "an address that can be checked", str(error)) from None
    except OSError:
        raise Refused("url", "a host that resolves", posting.shown(kind, url)) from None


def _key(kind: str, given: SecretStr | None, *, new: bool) -> tuple[bytes | None, dict[str, str]]:
    """The key of a webhook, and what the answer shows of it: a secret that was made here, this once."""
    if kind != "webhook":
        if given is not None:
            raise Refused("secret", f"none: messages of kind {kind} are not signed", "a secret")
        return None, {}
    if given is None:
        made = signing.new_secret() if new else None
        return (None, {}) if made is None else (made.encode(), {"secret": made})
    text = given.get_secret_value()
    least, most = signing.MIN_SECRET_CHARS, signing.MAX_SECRET_CHARS
    if not (text.isascii() and text.isprintable() and least <= len(text) <= most):
        raise Refused("secret", f"{least} to {most} printable ASCII characters", f"{len(text)} characters")
    return text.encode(), {}


def _write_audit(c: Connection, by: Caller, action: str, channel: ChannelRecord, **more: Any) -> None:
    detail = {"kind": channel.kind, "name": channel.name, **more}
    audit.write(c, by, action, target=channel.id, detail=detail, now=time.time())


def _shown(services: Services, channel: ChannelRecord) -> dict[str, Any]:
    from_settings = services.settings.slack_webhook_url
    url = channel.url or (None if from_settings is None else from_settings.get_secret_value())
    return {
        "id": channel.id,
        "kind": channel.kind,
        "name": channel.name,
        "host": None if url is None else posting.shown(channel.kind, url),
        "min_severity": channel.min_severity,
        "projects": list(channel.projects),
        "enabled": channel.enabled,
        "repeat_s": channel.repeat_s,
        "escalate_s": channel.escalate_s,
        "quiet": None if channel.quiet is None else channel.quiet.to_json(),
        "signed": channel.signing_key is not None,
        "created": iso(channel.created),
        "updated": None if channel.updated is None else iso(channel.updated),
        "updated_by": channel.updated_by,
    }
