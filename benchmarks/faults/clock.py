"""The server's clock jumps while steps come in: hours forward, days back. Nothing is lost, nobody flooded."""

from __future__ import annotations

import argparse
import http.client
import json
import random
import shutil
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path

from benchmarks.faults import shifted_clock
from benchmarks.faults.checks import check_messages, check_story, check_structure, settle
from benchmarks.faults.senders import Lane, Load
from benchmarks.faults.server import Server, served
from benchmarks.faults.tally import Tally
from floatscope_server.database import Database
from tests.server.live import TOKEN
from tests.server.slack import FakeSlack, slack

HOUR_S, DAY_S = 3600.0, 86_400.0
JUMPS_S = (3 * HOUR_S, 12 * HOUR_S, 2 * DAY_S, 30.0, -30.0, -HOUR_S, -2 * DAY_S, -9 * DAY_S)
FURTHEST_S = 30 * DAY_S
BETWEEN_S = 0.7
MOST_MESSAGES = 4  # of one alert: began, over, and once more each where it came again


def main(args: argparse.Namespace, tally: Tally) -> None:
    """Lets the clock jump ``--jumps`` times, now and then with a restart in between."""
    print("  the server's time.time() is shifted; libfaketime is not used", flush=True)
    rng = random.Random(args.seed)
    folder = Path(tempfile.mkdtemp(prefix="floatscope-clock-"))
    at = folder / "clock"
    shifted_clock.make(at)
    failing: list[tuple[int, dict[str, str]]] = [(500, {}), (429, {"Retry-After": "2"}), (200, {})]
    with slack(*failing * 4) as receiver:
        environment = {
            "FLOATSCOPE_SLACK_WEBHOOK_URL": receiver.url,
            "FLOATSCOPE_ALLOW_PRIVATE_WEBHOOKS": "1",
            "FLOATSCOPE_ALERT_GROUP_S": "2",
            "FLOATSCOPE_ALERT_FLAP_S": "5",
        }
        with served(folder / "data", **environment) as server:
            server.clock = at
            server.start()
            _under_load(args, server, receiver, rng, tally)
    if not tally.broken:
        shutil.rmtree(folder)


def _under_load(
    args: argparse.Namespace, server: Server, receiver: FakeSlack, rng: random.Random, tally: Tally
) -> None:
    assert server.clock is not None
    lanes = [Lane("long", 1, None, rows=48), Lane("pairs", 2, 30), Lane("short", 1, 15)]
    load = Load(server.port, lanes, seed=args.seed, tally=tally, pause_s=0.08)
    load.start()
    reader = Reader(server, tally)
    reader.start()
    shift, end = 0.0, time.monotonic() + args.minutes * 60
    for number in range(args.jumps):
        if time.monotonic() > end:
            break
        time.sleep(min(rng.expovariate(1 / BETWEEN_S), 3 * BETWEEN_S))
        jump = rng.choice(JUMPS_S)
        shift = shift + jump if abs(shift + jump) < FURTHEST_S else 0.0
        shifted_clock.shift(server.clock, shift)
        tally.add("jumps forward" if jump > 0 else "jumps back")
        if number % 6 == 5:
            server.kill()
            server.start()
            tally.add("kill -9 after a jump")
    load.stop()
    reader.stop()
    database = Database(f"sqlite:///{server.data_dir / 'floatscope.db'}")
    began = time.monotonic()
    settle(database, tally)
    tally.add("seconds until all messages were out", round(time.monotonic() - began))
    for story, ended in load.stories:
        shown = server.client.get(f"/api/v1/runs/{story.run_id}").json
        expected = ended or "running"
        good = shown["status"] == expected or (ended is None and shown["status"] == "stalled")
        tally.holds(good, f"{story.run_id} is {shown['status']} instead of {expected}")
    _pages(server, tally)
    tally.holds(server.stop() == 0, "the server did not stop with 0")
    for story, ended in load.stories:
        acked = {rank: load.acked.get((story.run_id, rank), 0) for rank in range(story.ranks)}
        check_story(database, story, ended=ended, acked=acked, tally=tally)
    check_messages(database, receiver.got, tally=tally)
    check_structure(database, tally=tally)
    most = MOST_MESSAGES * max(tally["alerts recorded"], 1)
    tally.holds(
        tally["messages stored"] <= most, f"a flood: {tally['messages stored']} messages, {most} at most"
    )
    database.close()


def _pages(server: Server, tally: Tally) -> None:
    """Every list, read page by page, shows each row once."""
    for path, key in (("/api/v1/runs", "run_id"), ("/api/v1/alerts", "id"), ("/api/v1/audit", "id")):
        seen: list[str] = []
        cursor = ""
        while True:
            body = server.client.get(f"{path}?limit=5{cursor}").json
            seen += [str(item.get(key, item)) for item in body["items"]]
            following = body.get("next") or body.get("next_cursor") or body.get("cursor")
            if not following:
                break
            cursor = f"&cursor={following}"
        tally.holds(len(seen) == len(set(seen)), f"{path} shows rows twice")
        tally.add(f"rows of {path} page by page", len(seen))


class Reader(threading.Thread):
    """A page's live events over all restarts: ids ascend, and a reset tells what may have been missed."""

    def __init__(self, server: Server, tally: Tally) -> None:
        super().__init__(daemon=True)
        self._server, self._tally = server, tally
        self._ended = threading.Event()
        self._last: int | None = None

    def stop(self) -> None:
        self._ended.set()
        self.join(30)

    def run(self) -> None:
        while not self._ended.is_set():
            try:
                self._read()
            except (OSError, http.client.HTTPException):  # the server is being started again
                time.sleep(0.05)

    def _read(self) -> None:
        with closing(http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=3)) as connection:
            self._follow(connection)

    def _follow(self, connection: http.client.HTTPConnection) -> None:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        came_back = self._last is not None
        if came_back:
            headers["Last-Event-ID"] = str(self._last)
        connection.request("GET", "/api/v1/events", headers=headers)
        with connection.getresponse() as answer:
            self._listen(answer, came_back=came_back)

    def _listen(self, answer: http.client.HTTPResponse, *, came_back: bool) -> None:
        last = None
        first = True
        while not self._ended.is_set():
            line = answer.readline().decode()
            if not line:
                return
            name, _, value = line.rstrip("\n").partition(": ")
            if name == "id":
                number = int(value)
                if last is not None:
                    self._tally.holds(number > last, f"event {number} after event {last}")
                last = self._last = number
                self._tally.add("events read")
            elif name == "event" and first:
                first = False
                if came_back:  # here always to another process, which knows nothing of before
                    self._tally.holds(value == "reset", f"no reset for a reader that came back, but {value}")
                    self._tally.add("readers that came back and were told to read again")
            elif name == "data":
                json.loads(value)
