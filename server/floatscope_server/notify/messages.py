"""From what a message tells to what it says, by kind of channel."""

from __future__ import annotations

import time
from typing import Any

from floatscope_server.notify import hook_body, plain, slack
from floatscope_server.notify.links import Links
from floatscope_server.store.channels import ChannelRecord
from floatscope_server.telling.notice import Notice


class Messages:
    """Builds messages whose links lead to ``public_url``."""

    CURVE_POINTS = 24

    def __init__(self, *, public_url: str) -> None:
        self._links = Links(public_url)

    def body(self, notice: Notice, channel: ChannelRecord) -> dict[str, Any]:
        """What is sent to this channel; it holds no address and no secret of it."""
        if channel.kind == "webhook":
            return hook_body.message(notice, self._links)
        if channel.kind == "apprise":
            return plain.message(notice, self._links)
        return slack.message(notice, self._links)

    def test(self, channel: ChannelRecord) -> dict[str, Any]:
        """A message that only shows that the channel works."""
        if channel.kind == "webhook":
            return hook_body.test(channel.name, now=time.time())
        return plain.test(channel.name) if channel.kind == "apprise" else slack.test(channel.name)
