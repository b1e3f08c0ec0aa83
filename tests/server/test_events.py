"""Live events: in order, resumable, bounded for slow readers, and they end when the server stops."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from floatscope_server import events as live
from floatscope_server.events import Event, Events
from tests.server.live import TOKEN, Client, in_own_process
from tests.server.samples import Scripted, body, finding, rows


class Stream:
    """A browser's EventSource."""

    def __init__(self, client: Client, query: str = "", last_id: int | None = None) -> None:
        self.beats: list[Any] = []
        headers = {"Authorization": f"Bearer {TOKEN}"}
        if last_id is not None:
            headers["Last-Event-ID"] = str(last_id)
        self.connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=10)
        self.connection.request("GET", f"/api/v1/events{query}", headers=headers)
        self.answer = self.connection.getresponse()
        assert self.answer.status == 200
        assert self.answer.getheader("content-type") == "text/event-stream; charset=utf-8"

    def next(self) -> tuple[int, str, dict[str, Any]]:
        """The next event: id, kind, data."""
        fields: dict[str, str] = {}
        while True:
            line = self.answer.readline().decode().rstrip("\n")
            if line.startswith(":") or line.startswith("retry"):
                continue
            if line:
                name, _, value = line.partition(": ")
                fields[name] = value
            elif fields.get("event") == "beat":
                assert "id" not in fields  # a reader that comes back goes on after news, not after beats
                self.beats.append(json.loads(fields["data"]))
                fields.clear()
            elif "data" in fields:
                return int(fields["id"]), fields["event"], json.loads(fields["data"])

    def close(self) -> None:
        self.answer.close()
        self.connection.close()


def until(stream: Stream, kind: str) -> tuple[int, dict[str, Any]]:
    for _ in range(50):
        number, found, data = stream.next()
        if found == kind:
            return number, data
    raise AssertionError(f"no {kind}")


def test_a_batch_is_told_and_a_reader_that_comes_back_misses_nothing(serve: Any) -> None:
    client = serve(engines=Scripted(lambda last: [] if last is None else [finding()]))
    client.open_run("r")
    stream = Stream(client, "?run=r")
    client.put("r", 0, body(rows(0, 3)))
    first, tick = until(stream, "tick")
    assert (tick["run"], tick["rank"], tick["step"]) == ("r", 0, 2)
    number, verdict = until(stream, "verdict")
    assert verdict == {"run": "r", "status": "critical", "findings": 1}
    assert number > first
    stream.close()
    client.put("r", 1, body(rows(3, 3)))
    client.call("POST", "/api/v1/runs/r/finish", {"status": "finished"})
    again = Stream(client, "?run=r", last_id=number)
    later, tick = until(again, "tick")
    assert later > number
    assert tick["step"] == 5
    assert until(again, "run")[1] == {"run": "r", "status": "finished"}
    again.close()


def test_only_the_run_that_was_asked_for(client: Client) -> None:
    client.open_run("mine")
    client.open_run("other")
    stream = Stream(client, "?run=mine")
    client.put("other", 0, body(rows(0, 1)))
    client.put("mine", 0, body(rows(0, 1)))
    assert until(stream, "tick")[1]["run"] == "mine"
    stream.close()


def test_a_reader_of_one_run_may_hear_of_the_alerts_of_all() -> None:
    def kinds(*, all_alerts: bool) -> list[tuple[str, object]]:
        hub = Events()

        def news() -> None:
            hub.publish("alert", run="other", alert="a")
            hub.publish("tick", run="other", rank=0)

        found = hear(hub, last_id=0, say=news, run="r", all_alerts=all_alerts)
        return [(event.kind, event.data["run"]) for event in found if event.data.get("run") == "other"]

    assert kinds(all_alerts=True) == [("alert", "other")]
    assert kinds(all_alerts=False) == []


def test_a_silent_stream_beats_and_says_how_often(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.open_run("r")
    monkeypatch.setattr(live, "BEAT_S", 0.05)
    stream = Stream(client, "?run=r&alerts=all")
    time.sleep(0.3)
    client.put("r", 0, body(rows(0, 1)))
    assert until(stream, "tick")[1]["run"] == "r"
    assert len(stream.beats) >= 3
    assert stream.beats[0] == {"every_s": 5}
    stream.close()
    assert client.get("/api/v1/events?alerts=some").status == 422


def test_an_odd_last_event_id_counts_as_none(client: Client) -> None:
    for odd in ("x", "-1", "9" * 50, "\u0661"):
        connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=10)
        headers = {"Authorization": f"Bearer {TOKEN}", "Last-Event-ID": odd.encode().decode("latin-1")}
        connection.request("GET", "/api/v1/events", headers=headers)
        assert connection.getresponse().status == 200
        connection.close()


def test_a_slow_reader_gets_the_latest_and_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "FLUSH_S", 0.0)

    async def scene() -> list[str]:
        hub = Events()
        hub.attach(asyncio.get_running_loop())
        reader = hub.read(run=None, last_id=None)
        await anext(reader)
        for step in range(10_000):
            hub.publish("tick", run="r", rank=0, step=step)
        hub.publish("verdict", run="r", status="healthy", findings=0)
        await asyncio.sleep(0.05)
        text = await anext(reader)
        hub.close()
        assert [rest async for rest in reader] == []
        return text.split("\n\n")[:-1]

    # in a thread of its own: a browser test of the same session keeps an event loop in this one
    with ThreadPoolExecutor(1) as pool:
        tick, verdict = pool.submit(lambda: asyncio.run(scene())).result()
    assert '"step":9999' in tick
    assert "event: verdict" in verdict


def hear(
    hub: Events,
    *,
    last_id: int | None,
    say: Callable[[], None] = lambda: None,
    run: str | None = None,
    all_alerts: bool = False,
) -> list[Event]:
    """What a reader gets that begins after ``last_id``, while ``say`` is called, until the hub closes."""

    async def scene() -> str:
        hub.attach(asyncio.get_running_loop())
        say()
        await asyncio.sleep(0.01)
        reader = hub.read(run=run, last_id=last_id, all_alerts=all_alerts)
        await anext(reader)
        reading = asyncio.ensure_future(anext(reader))
        await asyncio.sleep(0.01)
        hub.publish("end", run="r")
        text = await reading
        hub.close()
        assert [rest async for rest in reader] == []
        return text

    with ThreadPoolExecutor(1) as pool:
        text = pool.submit(lambda: asyncio.run(scene())).result()
    found = []
    for block in text.split("\n\n")[:-1]:
        number, kind, data = (line.partition(": ")[2] for line in block.split("\n"))
        found.append(Event(int(number), kind, json.loads(data)))
    return found


def test_ids_ascend_across_restarts_and_when_the_clock_jumps_back() -> None:
    times = iter([1000.0, 1000.0, 990.0, 1000.0])
    hub = Events(clock=lambda: next(times, 1001.0))
    ids = [event.id for event in hear(hub, last_id=0, say=lambda: hub.publish("tick", run="r"))]
    assert ids == sorted(set(ids))
    later = Events(clock=lambda: 2000.0)
    assert hear(later, last_id=0)[0].id > ids[-1]


def test_a_reader_that_comes_back_to_a_new_server_is_told_to_read_again() -> None:
    hub = Events()
    missed = hear(hub, last_id=int(time.time() * 1e6) - 60_000_000)
    assert missed[0].kind == "reset"
    fresh = hear(Events(), last_id=None)
    assert [event.kind for event in fresh] == ["end"]


def test_a_reader_whose_last_id_lies_in_the_future_is_told_to_read_again() -> None:
    """The clock was set back, and the server started again, since it read."""
    hub = Events(clock=lambda: 1000.0)
    found = hear(hub, last_id=1_060_000_000, say=lambda: hub.publish("tick", run="r"))
    assert found[0].kind == "reset"
    assert found[0].id < 1_060_000_000


def test_a_reader_that_was_away_for_too_long_is_told_to_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "REMEMBERED", 10)
    hub = Events()
    start = int(time.time() * 1e6)

    def many() -> None:
        for rank in range(20):
            hub.publish("tick", run="r", rank=rank)

    kinds = [event.kind for event in hear(hub, last_id=start, say=many)]
    assert kinds[0] == "reset"


def test_what_another_worker_published_is_told_again_around_the_last_id() -> None:
    told: list[Any] = []
    one, other = Events(clock=lambda: 1000.0), Events(clock=lambda: 990.0)
    one.relay_by(lambda body, _key: told.append(body))
    other.relay_by(lambda _body, _key: None)
    hear(one, last_id=None, say=lambda: one.publish("run", run="r", status="finished"))
    assert [body["kind"] for body in told] == ["run", "end"]

    def arrive() -> None:
        for said in told:
            other.arrived(said)

    # the reader saw something later on the first worker, whose clock may be ahead of the second's
    found = hear(other, last_id=told[0]["id"] + 500_000, say=arrive)
    assert ("run", {"run": "r", "status": "finished"}) in [(event.kind, event.data) for event in found]


def test_news_that_make_no_sense_are_dropped() -> None:
    hub = Events()

    def nonsense() -> None:
        made_up: list[dict[str, Any]] = [
            {},
            {"id": "x", "kind": "run", "data": {}},
            {"id": 1, "kind": None, "data": {}},
        ]
        for said in made_up:
            hub.arrived(said)

    assert [event.kind for event in hear(hub, last_id=int(time.time() * 1e6), say=nonsense)] == ["end"]


@pytest.mark.timeout(60)
def test_streams_end_when_the_server_is_told_to_stop(tmp_path: Path) -> None:
    with in_own_process(tmp_path / "data") as process:
        client = process.start()
        streams = [Stream(client) for _ in range(3)]
        ended: list[bytes] = []
        threads = [threading.Thread(target=lambda s=s: ended.append(s.answer.read())) for s in streams]
        for thread in threads:
            thread.start()
        start = time.monotonic()
        assert process.stop() == 0
        assert time.monotonic() - start < 5
        for thread in threads:
            thread.join(5)
        assert len(ended) == 3
        for stream in streams:
            stream.close()
