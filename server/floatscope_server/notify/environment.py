"""The one Slack channel that comes from ``FLOATSCOPE_SLACK_WEBHOOK_URL``, without a click."""

from __future__ import annotations

import logging

from floatscope_server.database import Database
from floatscope_server.notify import webhook
from floatscope_server.notify.webhook import WebhookRefused
from floatscope_server.store import channels
from floatscope_server.store.channels import ChannelRecord

CHANNEL_ID = "slack-environment"

_log = logging.getLogger(__name__)


def offer_environment_channel(database: Database, *, is_set: bool, now: float) -> None:
    """Makes the channel while the variable is set and switches it off when it is not; its address is never
    stored.
    """
    record = ChannelRecord(CHANNEL_ID, "slack", "Slack (environment)", None, "warning", (), is_set, now)
    with database.write() as c:
        if is_set or any(channel.id == CHANNEL_ID for channel in channels.listed(c)):
            channels.put(c, record)


def check_environment_url(url: str, *, allow_private: bool) -> None:
    """Raises WebhookRefused for an address that may never be called; a name that does not resolve yet is
    only logged.
    """
    try:
        webhook.check(url, allow_private=allow_private)
    except OSError:
        _log.warning(
            "the Slack webhook's host %s does not resolve now; messages wait until it does",
            webhook.host_of(url),
        )
    except WebhookRefused as error:
        raise WebhookRefused(f"FLOATSCOPE_SLACK_WEBHOOK_URL: {error}") from error
