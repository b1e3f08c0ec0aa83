"""Channels by which people are told. The address of a channel goes in and never comes out."""

from __future__ import annotations

import secrets
import time
from typing import Annotated, Any, Literal

import anyio.to_thread
from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, SecretStr
from starlette.responses import Response

from floatscope.protocol.names import MAX_NAME_BYTES
from floatscope_server.answers import Json
from floatscope_server.errors import Refused
from floatscope_server.notify import webhook
from floatscope_server.notify.webhook import WebhookFailed, WebhookRefused
from floatscope_server.routes import fields
from floatscope_server.routes.fields import ResourceId
from floatscope_server.services import Services, Use
from floatscope_server.store import channels
from floatscope_server.store.channels import ChannelRecord
from floatscope_server.times import iso

router = APIRouter(tags=["channels"])

MAX_PROJECTS = 100


class ChannelIn(BaseModel):
    """A new channel. ``projects``: empty for all."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["slack"]
    name: str = Field(min_length=1, max_length=MAX_NAME_BYTES)
    url: SecretStr
    min_severity: Literal["info", "warning", "critical"] = "warning"
    projects: list[Annotated[str, Field(min_length=1, max_length=MAX_NAME_BYTES)]] = Field(
        default_factory=list, max_length=MAX_PROJECTS
    )


@router.get("/channels", response_class=Json)
def list_channels(services: Use) -> Response:
    """All channels."""
    with services.database.read() as c:
        found = channels.listed(c)
    return Json({"items": [_shown(services, channel) for channel in found], "next_cursor": None})


@router.post("/channels", openapi_extra=fields.body_of(ChannelIn), response_class=Json, status_code=201)
async def add_channel(request: Request, services: Use) -> Response:
    """Adds a channel. Its address must resolve to a public one unless private ones are allowed."""
    given = await fields.read_json(request, ChannelIn)
    fields.name(given.name, field="name")
    for index, project in enumerate(given.projects):
        fields.name(project, field=f"projects.{index}")
    return await anyio.to_thread.run_sync(_add, services, given)


def _add(services: Services, given: ChannelIn) -> Response:
    url = given.url.get_secret_value()
    try:
        webhook.check(url, allow_private=services.settings.allow_private_webhooks)
    except WebhookRefused as error:
        raise Refused(
            "url", "the address of a webhook that may be called", str(error), hint=str(error)
        ) from error
    except OSError as error:
        raise Refused("url", "a host that resolves", webhook.host_of(url)) from error
    record = ChannelRecord(
        id=f"{given.kind}-{secrets.token_hex(6)}",
        kind=given.kind,
        name=given.name,
        url=url,
        min_severity=given.min_severity,
        projects=tuple(given.projects),
        enabled=True,
        created=time.time(),
    )
    with services.database.write() as c:
        channels.put(c, record)
    return Json(_shown(services, record), status_code=201)


@router.delete("/channels/{channel_id}", response_class=Json)
def disable_channel(channel_id: ResourceId, services: Use) -> Response:
    """Switches a channel off. What it delivered stays on record."""
    with services.database.write() as c:
        channels.get(c, channel_id)
        channels.disable(c, channel_id)
        record = channels.get(c, channel_id)
    return Json(_shown(services, record))


@router.post("/channels/{channel_id}/test", response_class=Json)
def test_channel(channel_id: ResourceId, services: Use) -> Response:
    """Sends one message now and says whether it arrived."""
    with services.database.read() as c:
        channel = channels.get(c, channel_id)
    try:
        status = services.sender.send(channel, services.messages.test(channel.name))
    except WebhookFailed as error:
        return Json({"delivered": False, "status": None, "error": str(error)})
    return Json({"delivered": True, "status": status, "error": None})


def _shown(services: Services, channel: ChannelRecord) -> dict[str, Any]:
    from_settings = services.settings.slack_webhook_url
    url = channel.url or (None if from_settings is None else from_settings.get_secret_value())
    return {
        "id": channel.id,
        "kind": channel.kind,
        "name": channel.name,
        "host": None if url is None else webhook.host_of(url),
        "min_severity": channel.min_severity,
        "projects": list(channel.projects),
        "enabled": channel.enabled,
        "created": iso(channel.created),
    }
