"""Sends what waits in the outbox: at least once, in order for each run on each channel, by a few threads.

A channel has at most one message on its way, so a slow one holds up nothing but itself; the channel that
waited longest goes first. A message is marked sent after the receiver took it. A process that dies in between
sends it again when it comes back: at least once, and the outbox records it once.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from floatscope_server.database import Database
from floatscope_server.notify import retry
from floatscope_server.notify.posting import Letter, Post
from floatscope_server.notify.webhook import DeliveryFailed
from floatscope_server.store import channels, sending
from floatscope_server.store.channels import ChannelRecord
from floatscope_server.store.sending import Message

THREADS = 4
TESTS = 4  # under way at once; each may take half a minute
IDLE_S = 5.0  # looks at the outbox at least this often, in case another process filled it
AWAY_S = 30.0  # after the database did not answer
PAUSE_S = (1.0, 2.0, 5.0, 15.0, 30.0)  # of a channel whose receiver failed so often in a row
ERROR_CHARS = 500
TIDY_S = 3600.0
KEEP_S, KEEP_MESSAGES, FORGET_AT_ONCE = 30 * 86_400.0, 100_000, 500

_log = logging.getLogger(__name__)


@dataclass
class _Lane:
    """What is known of a channel in this process. paused: no message before then (the sender's clock)."""

    busy: bool = False
    served: int = 0
    failures: int = 0
    paused: float = 0.0


class Sender:
    """The threads that empty the outbox.

    env_url: address of channels that have none of their own.  may_send: whether this process is the one that
    sends, of several on the same database.
    """

    def __init__(
        self,
        *,
        database: Database,
        post: Post,
        env_url: str | None,
        may_send: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._database = database
        self._post = post
        self._env_url = env_url
        self._may_send = may_send
        self._clock = clock
        self._chance = chance
        self._choosing = threading.Lock()
        self._bell = threading.Condition()
        self._rung = 0
        self._stopping = False
        self._turns = 0
        self._lanes: dict[str, _Lane] = {}
        self._refusals: dict[int, int] = {}
        self._outcomes: dict[int, DeliveryFailed | None] = {}  # of posts that could not be recorded yet
        self._tests = threading.BoundedSemaphore(TESTS)
        self._tidied = float("-inf")
        self._threads = [
            threading.Thread(target=self._run, name=f"floatscope-sender-{n}", daemon=True)
            for n in range(THREADS)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, *, timeout: float = 15.0) -> None:
        """Waits for the posts that are under way; what is not sent stays in the outbox."""
        with self._bell:
            self._stopping = True
            self._bell.notify_all()
        end = time.monotonic() + timeout
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(end - time.monotonic(), 0.0))

    def wake(self) -> None:
        """There may be something to send."""
        with self._bell:
            self._rung += 1
            self._bell.notify_all()

    def changed(self, channel_id: str) -> None:
        """Somebody changed the channel or asked for another try: it is not left alone any longer."""
        with self._choosing:
            lane = self._lanes.get(channel_id)
            if lane is not None:
                lane.failures, lane.paused = 0, 0.0
        self.wake()

    def alive(self) -> bool:
        return all(thread.is_alive() for thread in self._threads)

    def send(self, channel: ChannelRecord, body: Mapping[str, Any], *, delivery: str) -> int | None:
        """Posts one body now and returns the status. Raises DeliveryFailed with a text that may be shown."""
        url = channel.url or self._env_url
        if url is None:
            raise DeliveryFailed("the channel has no address; set FLOATSCOPE_SLACK_WEBHOOK_URL", refused=True)
        return self._post(Letter(channel.kind, url, channel.signing_key, body, delivery))

    @contextmanager
    def test_slot(self) -> Iterator[bool]:
        """Whether another test may be sent now."""
        free = self._tests.acquire(blocking=False)
        try:
            yield free
        finally:
            if free:
                self._tests.release()

    def _run(self) -> None:
        while not self._stopping:
            rung = self._rung
            try:
                wait = self.turn()
            except Exception:  # the database may be away for a while; messages wait in it
                _log.exception("the outbox could not be read or written; trying again in %g s", AWAY_S)
                wait = AWAY_S
            with self._bell:
                if wait > 0:
                    self._bell.wait_for(lambda: self._stopping or self._rung != rung, wait)  # noqa: B023

    def turn(self) -> float:
        """Sends one message if one is due. Returns the seconds until another may be, 0 for at once."""
        chosen, wait = self._choose()
        if chosen is None:
            self._tidy()
            return wait
        message, channel = chosen
        try:
            self._deliver(message, channel)
        finally:
            self._lanes[channel.id].busy = False
        return 0.0

    def _choose(self) -> tuple[tuple[Message, ChannelRecord] | None, float]:
        """The next message of the channel that waited longest, or how long to wait."""
        with self._choosing:
            if not self._may_send():
                return None, IDLE_S
            now, wait, best = self._clock(), IDLE_S, None
            # What ends while this reads is recorded after what it sees: the same message would be sent again.
            busy = {name for name, lane in self._lanes.items() if lane.busy}
            with self._database.read() as c:
                for found in sending.waiting(c, now=now, longest_wait_s=retry.LONGEST_WAIT_S):
                    lane = self._lanes.setdefault(found.channel, _Lane())
                    pause = lane.paused - now
                    if found.channel in busy:
                        continue
                    if 0 < pause <= retry.LONGEST_WAIT_S:  # longer: the clock was set back meanwhile
                        wait = min(wait, pause)
                    elif found.ready is None:
                        wait = min(wait, max(found.due - now, 0.0))
                    elif best is None or lane.served < best[0].served:
                        best = lane, found.ready
                message = None if best is None else sending.message(c, best[1])
                if best is None or message is None:
                    return None, wait
                channel = channels.get(c, message.channel)
            self._turns += 1
            best[0].busy, best[0].served = True, self._turns
            return (message, channel), 0.0

    def _deliver(self, message: Message, channel: ChannelRecord) -> None:
        if message.id in self._outcomes:  # posted already; only its record failed
            failure = self._outcomes[message.id]
        else:
            failure = self._try(message, channel)
            self._outcomes[message.id] = failure
        self._record(message, channel, failure)
        del self._outcomes[message.id]
        self._pause(channel, failure)

    def _try(self, message: Message, channel: ChannelRecord) -> DeliveryFailed | None:
        try:
            self.send(channel, message.body(), delivery=str(message.id))
        except DeliveryFailed as failure:
            return failure
        except Exception as error:  # one message that cannot be sent must not stop the others
            _log.error("message %d to channel %r cannot be sent: %s", message.id, channel.name, type(error))
            return DeliveryFailed(f"the message cannot be sent ({type(error).__name__})", refused=True)
        return None

    def _record(self, message: Message, channel: ChannelRecord, failure: DeliveryFailed | None) -> None:
        now = self._clock()
        if failure is None:
            with self._database.write() as c:
                sending.sent(c, message.id, now=now)
            self._refusals.pop(message.id, None)
            return
        refusals = self._refusals.get(message.id, 0) + failure.refused
        wait = retry.wait_s(
            tries=message.attempts + 1,
            refusals=refusals,
            age_s=now - message.created,
            refused=failure.refused,
            retry_after=failure.retry_after,
            chance=self._chance(),
        )
        error = str(failure)[:ERROR_CHARS]
        with self._database.write() as c:
            if wait is None:
                sending.given_up(c, message.id, error=error, now=now)
            else:
                sending.failed(c, message.id, error=error, due=now + wait)
        self._refusals.pop(message.id, None)
        if wait is not None and refusals:
            self._refusals[message.id] = refusals
        level = logging.ERROR if wait is None else logging.WARNING
        end = "and is given up" if wait is None else f"and is tried again in {wait:.0f} s"
        _log.log(level, "message %d to channel %r failed, %s: %s", message.id, channel.name, end, error)

    def _pause(self, channel: ChannelRecord, failure: DeliveryFailed | None) -> None:
        """A receiver that is away or asks to wait is left alone, whatever the message."""
        lane = self._lanes[channel.id]
        if failure is None or (failure.refused and failure.retry_after is None):
            lane.failures, lane.paused = 0, 0.0
            return
        pause = PAUSE_S[min(lane.failures, len(PAUSE_S) - 1)]
        lane.failures += 1
        lane.paused = self._clock() + max(pause, failure.retry_after or 0.0)

    def _tidy(self) -> None:
        """Forgets finished messages, now and then, in small transactions."""
        with self._choosing:
            if not self._may_send() or time.monotonic() - self._tidied < TIDY_S:
                return
            self._tidied = time.monotonic()
        before = self._clock() - KEEP_S
        while not self._stopping:
            with self._database.write() as c:
                gone = sending.forget(c, finished_before=before, newest=KEEP_MESSAGES, limit=FORGET_AT_ONCE)
            if gone < FORGET_AT_ONCE:
                return
