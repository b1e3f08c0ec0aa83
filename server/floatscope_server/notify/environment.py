"""The one Slack channel that comes from ``FLOATSCOPE_SLACK_WEBHOOK_URL``, without a click."""

from __future__ import annotations

import logging
from dataclasses import replace

from floatscope_server.database import Database
from floatscope_server.notify import targets
from floatscope_server.notify.targets import WebhookRefused
from floatscope_server.store import channels
from floatscope_server.store.channels import ChannelRecord

CHANNEL_ID = "slack-environment"

_log = logging.getLogger(__name__)


def offer_environment_channel(database: Database, *, is_set: bool, now: float) -> None:
    """Makes the channel while the variable is set and switches it off when it is not; its address is never
    stored. What was chosen for it, such as quiet hours, is kept.
    """
    new = ChannelRecord(CHANNEL_ID, "slack", "Slack (environment)", None, "warning", (), is_set, now)
    with database.write() as c:
        known = next((channel for channel in channels.listed(c) if channel.id == CHANNEL_ID), None)
        if known is not None:
            channels.put(c, replace(known, enabled=is_set))
        elif is_set:
            channels.put(c, new)


def check_environment_url(url: str, *, allow_private: bool) -> None:
    """Raises WebhookRefused for an address that may never be called; a name that does not resolve yet is
    only logged.
    """
    try:
        targets.check(url, allow_private=allow_private)
    except OSError:
        _log.warning(
            "the Slack webhook's host %s does not resolve now; messages wait until it does",
            targets.host_of(url),
        )
    except WebhookRefused as error:
        raise WebhookRefused(f"FLOATSCOPE_SLACK_WEBHOOK_URL: {error}") from error
