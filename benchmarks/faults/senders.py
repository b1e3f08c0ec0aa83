"""Senders that do what the wire asks of them: the same bytes under the same seq until the server has them."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.faults.story import Sent, Story
from benchmarks.faults.tally import Tally
from tests.server.live import TOKEN

TIMEOUT_S = 20.0
GIVE_UP_S = 600.0
REPEATED = 0.08  # share of batches that are sent once more though they were acknowledged
LONGEST_PAUSE_S = 0.25  # shorter than what the server asks for, to keep it under load


class GaveUp(Exception):
    """The server did not take a request for a long time."""


@dataclass
class Reply:
    status: int
    headers: Mapping[str, str]
    body: Any


class Courier:
    """One connection at a time to one server; asks again until there is an answer that means something."""

    def __init__(self, port: int, tally: Tally, rng: random.Random, *, host: str = "127.0.0.1") -> None:
        self._host, self._port, self._tally, self._rng = host, port, tally, rng
        self._connection: http.client.HTTPConnection | None = None

    def ask(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[Reply, int]:
        """The answer and how often it was asked again. Raises GaveUp."""
        end, again = time.monotonic() + GIVE_UP_S, 0
        while True:
            reply = self._once(method, path, body, headers)
            if reply is not None and reply.status != 429 and reply.status < 500:
                return reply, again
            if reply is not None:
                self._tally.add(f"answers {reply.status}")
                told = reply.status == 500 or "retry-after" in reply.headers
                self._tally.holds(told, f"{reply.status} without Retry-After: {method} {path}: {reply.body}")
                self._tally.holds(reply.status != 500, f"500: {method} {path}: {reply.body}")
            if time.monotonic() > end:
                raise GaveUp(f"{method} {path}: {'no answer' if reply is None else reply}")
            again += 1
            time.sleep(self._rng.random() * LONGEST_PAUSE_S)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _once(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Reply | None:
        connection = self._connection
        if connection is None:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
            self._connection = connection
        try:
            connection.request(method, path, body, {"Authorization": f"Bearer {TOKEN}", **headers})
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            self._tally.add("connections that broke")
            self._tally.add(
                f"requests without an answer in {TIMEOUT_S:.0f} s", isinstance(error, TimeoutError)
            )
            return None
        found: Any = content
        with contextlib.suppress(ValueError):
            found = json.loads(content)
        return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, found)


@dataclass
class Lane:
    """Runs one after the other, each of so many ranks.  batches: of each rank; None for one endless run."""

    name: str
    ranks: int
    batches: int | None
    rows: int = 24
    told: list[tuple[Story, str | None]] = field(default_factory=list)  # with the status it was ended with


class Load:
    """Threads that send the runs of some lanes until they are told to stop, and then bring them to an end.

    acked: (run, rank) -> batches acknowledged.  pause_s: mean pause between two batches of a rank.
    """

    def __init__(self, port: int, lanes: list[Lane], *, seed: int, tally: Tally, pause_s: float) -> None:
        self.acked: dict[tuple[str, int], int] = {}
        self.lanes = lanes
        self._port, self._seed, self._tally, self._pause_s = port, seed, tally, pause_s
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._lane, args=(n,), daemon=True) for n in range(len(lanes))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stops after what is under way is acknowledged."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(GIVE_UP_S)
            self._tally.holds(not thread.is_alive(), "a sender does not come to an end")

    @property
    def stories(self) -> list[tuple[Story, str | None]]:
        return [told for lane in self.lanes for told in lane.told]

    def _lane(self, number: int) -> None:
        lane, at = self.lanes[number], 0
        while not self._stopping.is_set():
            seed = self._seed * 1_000_003 + number * 10_007 + at
            story = Story(f"{lane.name}-{at}", seed, lane.ranks, lane.batches, lane.rows)
            self._guarded(lambda story=story: self._run(lane, story), story.run_id)  # type: ignore[misc]
            at += 1

    def _run(self, lane: Lane, story: Story) -> None:
        rng = random.Random(story.seed)
        courier = Courier(self._port, self._tally, rng)
        body = json.dumps({"run_id": story.run_id, **story.described}).encode()
        reply, _ = courier.ask("POST", "/api/v1/runs", body, {"Content-Type": "application/json"})
        if not self._tally.holds(reply.status in (200, 201), f"{story.run_id} cannot be opened: {reply}"):
            return
        lane.told.append((story, None))
        ranks = [
            threading.Thread(target=self._guarded, args=(lambda r=r: self._rank(story, r), story.run_id))
            for r in range(story.ranks)
        ]
        for thread in ranks:
            thread.start()
        for thread in ranks:
            thread.join()
        if self._stopping.is_set() and rng.random() < 0.5:
            courier.close()
            return  # left running, to be judged as such
        status = rng.choice(["finished", "finished", "crashed"])
        body = json.dumps({"status": status, "reason": None}).encode()
        path = f"/api/v1/runs/{story.run_id}/finish"
        reply, _ = courier.ask("POST", path, body, {"Content-Type": "application/json"})
        self._tally.holds(reply.status in (200, 204), f"{story.run_id} cannot be finished: {reply}")
        self._tally.add("runs finished")
        lane.told[-1] = (story, status)
        courier.close()

    def _rank(self, story: Story, rank: int) -> None:
        rng = random.Random(story.seed * 7 + rank)
        courier = Courier(self._port, self._tally, rng)
        for sent in story.stream(rank):
            if self._stopping.is_set():
                break
            taken = put(courier, story, rank, sent, tally=self._tally)
            self.acked[story.run_id, rank] = sent.seq + 1
            if rng.random() < REPEATED:
                put(courier, story, rank, sent, tally=self._tally, again_as=taken)
            time.sleep(rng.expovariate(1 / self._pause_s) if self._pause_s else 0.0)
        courier.close()

    def _guarded(self, work: Callable[[], None], what: str) -> None:
        try:
            work()
        except Exception as error:  # a thread of its own: what went wrong must be seen at the end
            self._tally.holds(False, f"sender of {what}: {type(error).__name__}: {error}")


def put(
    courier: Courier, story: Story, rank: int, sent: Sent, *, tally: Tally, again_as: bytes | None = None
) -> bytes:
    """Sends one batch until it is acknowledged and returns the body that was taken. Raises GaveUp if the
    server will not have it.

    again_as: the body that was taken before, where the batch is only repeated.
    """
    path = f"/api/v1/runs/{story.run_id}/ranks/{rank}/batches/{sent.seq}"
    headers = {"Content-Type": sent.content_type}
    if sent.encoding is not None:
        headers["Content-Encoding"] = sent.encoding
    body = sent.whole if sent.whole is not None and sent.seq % 7 == 0 else sent.body
    body = body if again_as is None else again_as
    reply, again = courier.ask("PUT", path, body, headers)
    if reply.status == 409 and isinstance(reply.body, dict) and reply.body.get("reason") == "need_tensors":
        tally.add("tensor tables asked for")
        assert sent.whole is not None
        body = sent.whole
        reply, more = courier.ask("PUT", path, body, headers)
        again += more
    good = reply.status == 200 and reply.body.get("expected_seq") == sent.seq + 1
    if not tally.holds(good, f"{path}: {reply.status} {reply.body}"):
        raise GaveUp(path)
    if again_as is not None:
        tally.add("batches repeated after their answer")
    else:
        tally.add("batches acknowledged")
        tally.add("steps acknowledged", len(sent.batch))
    tally.add("batches resent", again)
    return body
