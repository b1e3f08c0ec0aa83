"""Fills channels and silences of the page of rules. Addresses and keys stay in the store."""

from __future__ import annotations

from sqlalchemy import Connection

from floatscope_dashboards.channels_view import (
    ChannelsView,
    ChannelView,
    DeliveryView,
    QuietView,
    SilenceView,
)
from floatscope_server.notify import posting
from floatscope_server.notify.environment import CHANNEL_ID as FROM_SETTINGS
from floatscope_server.services import Services
from floatscope_server.store import channels, sending, silences
from floatscope_server.store.channels import ChannelRecord
from floatscope_server.store.sending import Sending
from floatscope_server.store.silences import Silence
from floatscope_server.times import moment

MOST_SILENCES = 100
MOST_ENDED = 10


def channels_view(c: Connection, services: Services, *, now: float) -> ChannelsView:
    """All channels with the newest message of each, and the silences."""
    holding = silences.listed(c, now=now, state="active", limit=MOST_SILENCES + 1)
    waiting = silences.listed(c, now=now, state="waiting", limit=MOST_SILENCES + 1)
    goes_on = [*holding, *waiting]
    held = silences.held_back(c, [silence.id for silence in goes_on[:MOST_SILENCES]])
    return ChannelsView(
        channels=tuple(_channel(c, services, channel) for channel in channels.listed(c)),
        silences=tuple(
            _silence(silence, now, held.get(silence.id, 0)) for silence in goes_on[:MOST_SILENCES]
        ),
        ended=tuple(
            _silence(silence, now, 0)
            for silence in silences.listed(c, now=now, state="ended", limit=MOST_ENDED)
        ),
        more_silences=len(goes_on) > MOST_SILENCES,
    )


def _channel(c: Connection, services: Services, channel: ChannelRecord) -> ChannelView:
    given = services.settings.slack_webhook_url if channel.id == FROM_SETTINGS else None
    url = channel.url or (None if given is None else given.get_secret_value())
    quiet = channel.quiet
    last = sending.of_channel(c, channel.id, states=(), before=None, limit=1)
    return ChannelView(
        id=channel.id,
        kind=channel.kind,
        name=channel.name,
        host=None if url is None else posting.shown(channel.kind, url),
        min_severity=channel.min_severity,
        projects=channel.projects,
        enabled=channel.enabled,
        repeat_s=channel.repeat_s,
        escalate_s=channel.escalate_s,
        quiet=None if quiet is None else QuietView(quiet.zone, quiet.start, quiet.end, quiet.days),
        signed=channel.signing_key is not None,
        from_settings=channel.id == FROM_SETTINGS,
        last=_delivery(last[0]) if last else None,
    )


def _delivery(item: Sending) -> DeliveryView:
    at = item.due if item.finished is None else item.finished
    return DeliveryView(item.state, item.attempts, moment(at), item.error)


def _silence(silence: Silence, now: float, held: int) -> SilenceView:
    return SilenceView(
        id=silence.id,
        state=silence.state(now),
        run=silence.run_id,
        project=silence.project,
        family=silence.family,
        cause=silence.cause,
        starts=moment(silence.starts),
        ends=None if silence.ends is None else moment(silence.ends),
        critical=silence.critical,
        note=silence.note,
        by=silence.created_by,
        ended_by=silence.ended_by,
        held=held,
    )
