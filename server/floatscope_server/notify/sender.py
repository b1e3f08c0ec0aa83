"""Sends what waits in the outbox: one thread, at least once, in order for each alert on each channel.

A message is marked sent after the receiver took it. A process that dies in between sends it again when it
comes back: at least once, and the outbox records it once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from floatscope_server.database import Database
from floatscope_server.notify import webhook
from floatscope_server.notify.webhook import WebhookFailed, WebhookRefused
from floatscope_server.store import channels, outbox
from floatscope_server.store.channels import ChannelRecord
from floatscope_server.store.outbox import Message

RETRY_S = (1.0, 2.0, 5.0, 15.0, 30.0)
LATER_RETRY_S = 300.0
GIVE_UP_S = 86_400.0
AT_ONCE = 20  # messages of one round
IDLE_S = 30.0  # looks at the outbox at least this often, in case another process filled it
ERROR_CHARS = 500

_log = logging.getLogger(__name__)

Post = Callable[[str, Mapping[str, Any]], int]
"""Posts a body to an address and returns the status; raises WebhookFailed, WebhookRefused or OSError."""


def poster(*, allow_private: bool) -> Post:
    """The real one: checks the address every time, since what a name points at may change."""

    def post(url: str, body: Mapping[str, Any]) -> int:
        return webhook.post(webhook.check(url, allow_private=allow_private), body)

    return post


class Sender:
    """The thread that empties the outbox. ``env_url``: address of channels that have none of their own."""

    def __init__(
        self, *, database: Database, post: Post, env_url: str | None, clock: Callable[[], float] = time.time
    ) -> None:
        self._database = database
        self._post = post
        self._env_url = env_url
        self._clock = clock
        self._woken = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="floatscope-sender", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, timeout: float = 15.0) -> None:
        """Waits for the post that is under way; what is not sent stays in the outbox."""
        self._stopping = True
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def wake(self) -> None:
        """There may be something to send."""
        self._woken.set()

    def alive(self) -> bool:
        return self._thread.is_alive()

    def send(self, channel: ChannelRecord, body: Mapping[str, Any]) -> int:
        """Posts one body now. Raises WebhookFailed with a text that may be shown."""
        url = channel.url or self._env_url
        if url is None:
            raise WebhookFailed("the channel has no address; set FLOATSCOPE_SLACK_WEBHOOK_URL")
        try:
            return self._post(url, body)
        except WebhookRefused as error:
            raise WebhookFailed(str(error)) from error
        except OSError as error:
            raise WebhookFailed(f"{webhook.host_of(url)} does not answer: {error}") from error

    def _run(self) -> None:
        while not self._stopping:
            try:
                wait = self._round()
            except Exception:  # the database may be away for a while; messages wait in it
                _log.exception("the outbox could not be read; trying again in %g s", RETRY_S[-1])
                wait = RETRY_S[-1]
            if wait > 0:
                self._woken.wait(wait)
            self._woken.clear()

    def _round(self) -> float:
        """Sends what is due and returns the seconds until more is, 0 if more may be due now."""
        with self._database.read() as c:
            messages = outbox.due(c, now=self._clock(), limit=AT_ONCE)
            by_id = {channel.id: channel for channel in channels.listed(c)}
        for message in messages:
            if self._stopping:
                return 0.0
            self._deliver(message, by_id[message.channel])
        if messages:
            return 0.0
        with self._database.read() as c:
            due = outbox.next_due(c)
        return IDLE_S if due is None else min(max(due - self._clock(), 0.0), IDLE_S)

    def _deliver(self, message: Message, channel: ChannelRecord) -> None:
        try:
            self.send(channel, message.body)
        except WebhookFailed as failure:
            self._failed(message, channel, failure)
            return
        with self._database.write() as c:
            outbox.sent(c, message.id, now=self._clock())

    def _failed(self, message: Message, channel: ChannelRecord, failure: WebhookFailed) -> None:
        now = self._clock()
        error = str(failure)[:ERROR_CHARS]
        late = now - message.created >= GIVE_UP_S
        _log.warning("message %d to channel %r failed: %s", message.id, channel.name, error)
        with self._database.write() as c:
            if late:
                outbox.given_up(c, message.id, error=error, now=now)
                return
            tried = message.attempts
            wait = RETRY_S[tried] if tried < len(RETRY_S) else LATER_RETRY_S
            outbox.failed(c, message.id, error=error, due=now + max(wait, failure.retry_after or 0.0))
