"""A clock, an outbox and receivers under control, for tests of the sender without waiting."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

from floatscope.protocol.runinfo import RunInfo
from floatscope_server.database import Database
from floatscope_server.notify.posting import Letter
from floatscope_server.notify.sender import Sender
from floatscope_server.notify.webhook import DeliveryFailed
from floatscope_server.store import alerts, channels, outbox, runs, sending
from floatscope_server.store.channels import ChannelRecord
from tests.server.samples import finding

Answer = Callable[[Letter], int | None]


def down(_letter: Letter) -> int | None:
    raise DeliveryFailed("down", status=503)


def takes(_letter: Letter) -> int | None:
    return 200


class Outage:
    """Channels whose receivers do as ``answers`` says. posts: (time, channel, alert, event) of every try."""

    def __init__(self, database: Database, *names: str, chance: float = 0.0) -> None:
        self.now = 1.7e9
        self.start = self.now
        self.posts: list[tuple[float, str, str, str]] = []
        self.answers: dict[str, Answer] = dict.fromkeys(names or ("ch",), down)
        self.database = database
        with database.write() as c:
            for run_id in ("r", "s"):
                runs.create(c, run_id, RunInfo(), summary="", now=self.now)
                run = runs.get(c, run_id).id
                alerts.create(c, run, run_id, finding(id=f"{run_id}1"), state="firing", now=self.now)
                alerts.create(c, run, run_id, finding(id=f"{run_id}2"), state="firing", now=self.now)
            for name in self.answers:
                url = f"http://{name}/secret"
                channels.put(c, ChannelRecord(name, "slack", name, url, "info", (), True, 0.0))
        self.sender = Sender(
            database=database,
            post=self.post,
            env_url=None,
            clock=lambda: self.now,
            chance=lambda: chance,
        )

    def queue(self, alert: str, event: str, *, channel: str = "ch", once: str | None = None) -> int | None:
        body = {"channel": channel, "alert": alert, "event": event}
        with self.database.write() as c:
            return outbox.add(
                c, channel=channel, alert=alert, event=event, body=body, now=self.now, once=once
            )

    def post(self, letter: Letter) -> int | None:
        body = letter.body
        self.posts.append((self.now - self.start, body["channel"], body["alert"], body["event"]))
        return self.answers[body["channel"]](letter)

    def pass_time(self, seconds: float) -> None:
        """Lets the sender do what it does in so many seconds, in no time."""
        end = self.now + seconds
        while self.now < end:
            self.now += max(self.sender.turn(), 1e-3 * random.random())

    def states(self, *alert_ids: str) -> list[str]:
        with self.database.read() as c:
            found = outbox.deliveries(c, alert_ids)
        return [delivery.state for alert_id in alert_ids for delivery in found[alert_id]]

    def shown(self, channel: str = "ch", *states: str) -> list[sending.Sending]:
        with self.database.read() as c:
            return sending.of_channel(c, channel, states=states, before=None, limit=1000)

    def times(self, event: str = "raised") -> list[float]:
        return [when for when, _, _, what in self.posts if what == event]


def pauses(times: list[float]) -> list[Any]:
    """Seconds between tries, rounded."""
    return [round(b - a) for a, b in itertools.pairwise(times)]
