"""Limits of one client and of one class of requests; clients that are slow on purpose."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

import floatscope
from floatscope_server import serving
from floatscope_server.callers import Caller
from floatscope_server.database import Database
from floatscope_server.errors import Problem
from floatscope_server.limits import layer
from floatscope_server.limits.backlog import Backlog
from floatscope_server.limits.buckets import BURST_S, KEYS, Buckets
from floatscope_server.limits.slots import NoSlot, Room, Slots
from floatscope_server.metrics.measures import Measures
from floatscope_server.store import runs
from tests.server.live import TOKEN, Client, wait_for
from tests.server.samples import body, rows
from tests.server.stored_runs import named


@given(
    st.floats(0.5, 100), st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 3)), min_size=1, max_size=80)
)
def test_a_bucket_lets_through_what_flows_in(per_s: float, asked: list[tuple[str, float]]) -> None:
    now = 0.0
    buckets = Buckets(per_s, clock=lambda: now)
    passed = {"a": 0, "b": 0}
    for client, pause in asked:
        now += pause
        wait_s = buckets.take(client)
        assert 0 <= wait_s <= 1 / per_s + 1e-6
        passed[client] += wait_s == 0
    for count in passed.values():
        assert count <= max(per_s * BURST_S, 1.0) + per_s * now + 1e-6
    assert passed[asked[0][0]] >= 1


def test_whoever_waits_as_told_is_let_in_and_memory_is_bounded() -> None:
    now = 0.0
    buckets = Buckets(2.0, clock=lambda: now)
    while not (wait_s := buckets.take("a")):
        pass
    now += wait_s
    assert buckets.take("a") == 0
    for number in range(KEYS + 10):
        buckets.take(str(number))
    assert len(buckets._left) == KEYS


def test_slots_are_bounded_and_so_is_waiting() -> None:
    async def story() -> None:
        slots = Slots(Room(at_once=2, waiting=1, wait_s=0.05))
        async with slots.one(), slots.one():
            with pytest.raises(NoSlot):
                async with slots.one():
                    pass
            waits = asyncio.create_task(hold(slots))
            await asyncio.sleep(0.01)
            with pytest.raises(NoSlot):  # one waits already
                async with slots.one():
                    pass
        assert await waits
        assert (slots.taken, slots.waiting) == (0, 0)
        async with slots.one():
            assert slots.taken == 1

    async def hold(slots: Slots) -> bool:
        async with slots.one():
            return True

    asyncio.run(story())


def test_a_token_that_asks_too_often_is_told_how_long_to_wait(serve: Any) -> None:
    client: Client = serve({"requests_per_s": 2.0, "ingest_per_s": 1000.0})
    answers = [client.get("/api/v1/me") for _ in range(8)]
    refused = [answer for answer in answers if answer.status == 429]
    assert refused
    assert refused[0].headers["retry-after"] == "1"
    assert refused[0].headers["content-type"] == "application/problem+json"
    assert (refused[0].json["limit"], "hint" in refused[0].json) == ("requests_per_s", True)
    assert client.open_run("r").status == 201  # steps have a limit of their own
    assert [client.put("r", seq, body(rows(seq, 1))).status for seq in range(8)] == [200] * 8
    assert client.get("/healthz").status == client.get("/readyz").status == 200


def test_steps_have_a_limit_of_their_own(serve: Any) -> None:
    client: Client = serve({"ingest_per_s": 1.0})
    client.open_run("r")
    statuses = [client.put("r", 0, body(rows(0, 1))).status for _ in range(4)]
    assert statuses[0] == 200
    assert statuses[-1] == 429
    answer = client.put("r", 0, b"x" * 2**20)  # its body is taken in, so that the answer is read
    assert (answer.status, answer.json["limit"]) == (429, "ingest_per_s")
    assert client.get("/api/v1/runs/r").json["ranks"][0]["expected_seq"] == 1


def test_a_real_agent_waits_and_loses_nothing(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client: Client = serve({"ingest_per_s": 4.0})
    monkeypatch.setenv("FLOATSCOPE_URL", f"http://127.0.0.1:{client.port}")
    monkeypatch.setenv("FLOATSCOPE_TOKEN", TOKEN)
    for number in range(12):  # the bucket is empty when the agent begins
        client.put("r", number, b"")
    monitor = floatscope.watch(run="r", run_id="r", flush_every_s=0.1, close_timeout_s=30.0)
    for step in range(40):
        monitor.step(step, loss=float(step))
        time.sleep(0.02)
    monitor.finish()
    time.sleep(1.0)
    assert [(row["step"], row["loss"]) for row in client.steps("r")] == [(s, float(s)) for s in range(40)]
    assert client.get("/api/v1/runs/r").json["status"] == "finished"


def test_slow_reads_leave_the_way_in_free(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tight = Room(at_once=1, waiting=1, wait_s=0.3)
    monkeypatch.setitem(layer.ROOMS, layer.EXPORTS, tight)
    client: Client = serve()
    client.open_run("r", tensors=named(300))
    steps = [
        {"step": s, "tensors": {name: {"amax": 1.0 + s, "rms": 0.123456789} for name in named(300)}}
        for s in range(256)
    ]
    for seq in range(4):
        assert client.put("r", seq, body(steps[seq * 64 : seq * 64 + 64])).status == 200
    with stuck_export(client), stuck_export(client):
        refused = client.get("/api/v1/runs/r/steps")
        assert (refused.status, refused.json["limit"]) == (503, "exports at once")
        assert refused.headers["retry-after"] == "2"
        assert client.put("r", 4, body(rows(300, 1))).status == 200
        assert client.get("/api/v1/runs/r/scalars").status == 200
    wait_for(lambda: client.get("/api/v1/runs/r/steps?to=3").status == 200)


@contextlib.contextmanager
def stuck_export(client: Client) -> Any:
    """A client that asks for a log and takes nothing of it."""
    with socket.create_connection(("127.0.0.1", client.port)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(
            f"GET /api/v1/runs/r/steps HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
        )
        time.sleep(0.2)
        yield connection


def test_a_client_that_takes_nothing_loses_its_place() -> None:
    async def never(_message: Any) -> None:
        await asyncio.sleep(60)

    async def story() -> None:
        with pytest.raises(layer.TooSlow):
            await layer.watched(never, patience_s=0.05)({"type": "http.response.body"})

    anyio.run(story)


def test_an_answer_that_nobody_takes_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def tells(_scope: Any, _receive: Any, _send: Any) -> None:
        raise layer.TooSlow("the client did not take its answer")

    async def silent() -> Any:
        await anyio.sleep_forever()

    async def ignored(_message: Any) -> None:
        return

    async def story() -> None:
        limits = layer.Limits(tells, ingest_per_s=9, other_per_s=9, measures=Measures(worker=0))
        state = {"caller": Caller("t", "id")}
        scope = {"type": "http", "path": "/api/v1/me", "method": "GET", "state": state, "headers": []}
        await limits(scope, silent, ignored)

    anyio.run(story)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_probes_may_ask_for_the_head_alone(client: Client) -> None:
    assert client.call("HEAD", "/healthz").status == 200
    assert client.call("HEAD", "/readyz").status == 200


def test_a_body_that_is_no_json_is_told_so(client: Client) -> None:
    client.open_run("r")
    answer = client.call("PATCH", "/api/v1/runs/r", b"{")
    assert (answer.status, answer.json["field"], answer.json["expected"]) == (422, "body", "valid JSON")


def test_headers_that_do_not_come_end_the_connection(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "HEADER_S", 0.3)
    client: Client = serve()
    drip = [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"]
    for begun in drip:
        with socket.create_connection(("127.0.0.1", client.port), timeout=10) as connection:
            connection.sendall(begun)
            found = b""
            if begun.endswith(b"\r\n\r\n"):
                found = connection.recv(65536)
                connection.sendall(b"GET /he")  # a second request that is never ended
            while part := connection.recv(65536):  # ends when the server closes
                found += part
            assert (b"200 OK" in found) == begun.endswith(b"\r\n\r\n")
    assert client.get("/healthz").status == 200


def test_a_body_that_does_not_come_ends_the_request(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer, "BODY_PART_S", 0.3)
    client: Client = serve()
    client.open_run("r")
    with socket.create_connection(("127.0.0.1", client.port), timeout=10) as connection:
        connection.sendall(
            b"PUT /api/v1/runs/r/ranks/0/batches/0 HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"
            b"Content-Type: application/json\r\nAuthorization: Bearer " + TOKEN.encode() + b"\r\n\r\n{"
        )
        answer = b""
        while part := connection.recv(65536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"cut short" in answer
    assert client.put("r", 0, body(rows(0, 1))).status == 200


def test_a_rank_that_is_far_behind_waits_until_it_is_not(database: Database) -> None:
    now, works = 0.0, True
    backlog = Backlog(database=database, compacting=lambda: works, rows=100, batches=10, clock=lambda: now)
    with database.write() as c:
        runs.create(c, "r", floatscope_info(), summary="", now=1.0)
        run = runs.get(c, "r").id
        place = runs.RankPosition(0, 1, 0, 7, 1.0)
        runs.place(c, run, place, rows=120)
    backlog.note("r", 0, hot_rows=99, hot_batches=9)
    backlog.check("r", 0)
    backlog.note("r", 0, hot_rows=120, hot_batches=1)
    with pytest.raises(Problem) as told:
        backlog.check("r", 0)
    assert (told.value.status, told.value.headers, told.value.extra) == (
        429,
        {"Retry-After": "2"},
        {"limit": "compaction"},
    )
    backlog.check("r", 1)
    works = False  # refusing steps would not help
    backlog.check("r", 0)
    works, now = True, 2.0
    with pytest.raises(Problem):
        backlog.check("r", 0)
    with database.write() as c:
        runs.place(c, run, place, rows=-60)
    backlog_before = backlog.count()
    now = 4.0
    backlog.check("r", 0)
    assert (backlog_before, backlog.count()) == (1, 0)


def floatscope_info() -> Any:
    from floatscope.protocol.runinfo import RunInfo

    return RunInfo()
