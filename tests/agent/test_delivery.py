"""Delivery to a server that fails in every way: each step is there exactly once, bit-equal, in the end."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope.answers import News
from floatscope.backlog import Backlog
from floatscope.client import Answer, TransportError
from floatscope.courier import Courier, Direct
from floatscope.delivery import Delivery
from floatscope.guard import Guard
from floatscope.outbox import Outbox
from floatscope.parcels import History
from floatscope.protocol.runinfo import RunInfo
from floatscope.rows import Block, Row
from floatscope.spool import Spool
from tests.agent.fake_server import FakeServer

RUN = "delivery"
NAMES = ("a/input", "a/weight", "b/input")


class Wire:
    """A transport to a FakeServer that follows a script of mishaps, one per request; then all goes well."""

    def __init__(self, server: FakeServer) -> None:
        self.server = server
        self.script: list[str] = []
        self.is_aborted = False

    def request(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        mishap = self.script.pop(0) if self.script else "none"
        if mishap == "request lost":
            raise TransportError("no route")
        if mishap == "busy":
            return Answer(429, None, "", {"retry-after": "2"})
        if mishap == "error before":
            return Answer(500, None, "<html>")
        if mishap == "backup" and method == "PUT":  # after its last batch an agent cannot know
            for record in self.server.ranks.values():
                keep = max(len(record.bodies) - 2, 0)
                del record.bodies[keep:], record.batches[keep:]
        if mishap == "tables forgotten":
            self.server.tables.clear()
        if mishap == "run forgotten":
            self.server.runs.clear()
        answer = self.server.request(method, path, body, headers)
        if mishap == "answer lost":
            raise TransportError("hung up")
        if mishap == "error after":
            return Answer(502, None, "bad gateway")
        if mishap == "garbage after":
            return Answer(200, {"welcome": "to the login page"}, "")
        return answer

    def close(self) -> None:
        return None

    def abort(self) -> None:
        self.is_aborted = True


MISHAPS = [
    "none", "request lost", "answer lost", "busy", "error before", "error after", "garbage after", "backup",
    "tables forgotten", "run forgotten",
]  # fmt: skip


class Bench:
    """A delivery with a clock of its own."""

    def __init__(
        self,
        *,
        batch_steps: int = 3,
        most_rows: int = 10_000,
        server: FakeServer | None = None,
        spool: Path | None = None,
        limit_bytes: int = 2**30,
        is_strict: bool = True,
        gives_up: bool = False,
        courier: Courier | None = None,
    ) -> None:
        self.now = 0.0
        self.server = server or FakeServer()
        self.wire = Wire(self.server)
        self.seen_settings: list[Mapping[str, Any]] = []
        self.verdicts: list[object] = []
        self.urls: list[str] = []
        self.pressures: list[int] = []
        guard = Guard(strict=is_strict)
        info = RunInfo(name="delivery", tensors={name: {"format": "e4m3"} for name in NAMES})
        self.delivery = Delivery(
            run_id=RUN,
            rank=0,
            courier=courier or Direct(self.wire),
            info=lambda: info,
            outbox=Outbox(
                rank=0,
                backlog=Backlog(most_rows=most_rows, most_bytes=2**20),
                info=lambda: info,
                guard=guard,
                batch_steps=batch_steps,
                open_spool=None if spool is None else lambda: Spool.open(spool, limit_bytes=limit_bytes),
                on_pressure=self.pressures.append,
            ),
            guard=guard,
            news=News(settings=self.seen_settings.append, verdict=self.verdicts.append, url=self.urls.append),
            gives_up=gives_up,
            clock=lambda: self.now,
            rng=random.Random(1),
        )

    def work(self) -> None:
        """Works until there is nothing left to do now, letting time pass where the delivery wants to wait."""
        for _ in range(5000):
            pause = self.delivery.work()
            if pause is None:
                return
            self.now += pause
        raise AssertionError("the delivery never comes to rest")

    def finish(self) -> None:
        self.delivery.finish("finished", None)
        self.work()
        assert self.delivery.is_done


def row(step: int, *, tensors: bool = True) -> Row:
    blocks = []
    if tensors:
        values = np.array([step, 1 / (step + 1), np.nan], np.float32)
        present = {"scale": np.array([True, False, True])}
        blocks = [Block(NAMES, {"amax": values, "scale": values * 2}, present)]
    return Row(step, 1e9 + step, {"loss": 1 / (step + 3), "lr": float(step)}, blocks)


def expected(step: int, *, tensors: bool = True) -> dict[str, Any]:
    """The row as the server should give it back."""
    out: dict[str, Any] = {"step": step, "time": 1e9 + step, "loss": 1 / (step + 3), "lr": float(step)}
    if tensors:
        values = [float(np.float32(v)) for v in (step, 1 / (step + 1), np.nan)]
        out["tensors"] = {name: {"amax": value} for name, value in zip(NAMES, values, strict=True)}
        for name, value in ((NAMES[0], values[0]), (NAMES[2], values[2])):
            out["tensors"][name]["scale"] = float(np.float32(value) * np.float32(2))
    return out


def assert_same(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    assert repr(found) == repr(wanted)  # repr: NaN is equal to itself, and floats are shown in full


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_step_arrives_once_and_bit_equal_whatever_happens(data: st.DataObject) -> None:
    bench = Bench(batch_steps=data.draw(st.integers(1, 5)))
    bench.wire.script = data.draw(st.lists(st.sampled_from(MISHAPS), max_size=40))
    step = 0
    for size in data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=8)):
        bench.delivery.accept([row(s, tensors=s % 2 == 0) for s in range(step, step + size)])
        step += size
        for _ in range(data.draw(st.integers(0, 4))):
            bench.now += bench.delivery.work() or 0.1
    bench.finish()

    assert_same(bench.server.rows(RUN), [expected(s, tensors=s % 2 == 0) for s in range(step)])
    assert bench.server.finished
    assert bench.server.finished[-1] == (RUN, {"status": "finished", "reason": None})
    assert bench.delivery.undelivered == 0


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=30))
def test_steps_that_go_back_never_share_a_batch(steps: list[int]) -> None:
    bench = Bench(batch_steps=8)
    bench.delivery.accept([row(step) for step in steps])
    bench.finish()
    assert [r["step"] for r in bench.server.rows(RUN)] == steps
    for batch in bench.server.rank(RUN).batches:
        assert (np.diff(batch.step) > 0).all()


def test_the_tensor_table_travels_once() -> None:
    bench = Bench()
    bench.delivery.accept([row(step) for step in range(30)])
    bench.finish()
    first, *rest = bench.server.rank(RUN).bodies
    assert b"table" in first
    assert not any(b'"table' in body or b'\\"table' in body for body in rest)
    assert len(rest) == 9


def test_a_resumed_run_goes_on_with_the_servers_seq_and_says_so() -> None:
    server = FakeServer()
    first = Bench(server=server)
    first.delivery.accept([row(step) for step in range(6)])
    first.finish()
    second = Bench(server=server)
    second.delivery.accept([row(step) for step in range(6, 9)])
    second.finish()
    rows = server.rows(RUN)
    assert [r["step"] for r in rows] == list(range(9))
    assert [r.get("resumed") for r in rows] == [None] * 6 + [1.0, None, None]


def test_two_writers_under_one_rank_are_both_kept() -> None:
    server = FakeServer()
    one, two = Bench(server=server), Bench(server=server)
    for step in range(0, 12, 3):
        for bench, loss in ((one, 1.0), (two, 2.0)):
            rows = [row(s) for s in range(step, step + 3)]
            for each in rows:
                each.scalars["loss"] = loss
            bench.delivery.accept(rows)
            bench.work()
    one.finish()
    two.finish()
    for loss in (1.0, 2.0):
        assert [r["step"] for r in server.rows(RUN) if r["loss"] == loss] == list(range(12))


def test_a_server_that_lost_more_than_is_kept_gets_a_named_hole() -> None:
    bench = Bench()
    bench.delivery._history = History(limit_parcels=2)
    bench.delivery.accept([row(step) for step in range(18)])  # 6 batches, the last 2 kept
    bench.work()
    bench.server.forget(RUN, 0, keep=1)
    bench.delivery.accept([row(step) for step in range(18, 21)])
    bench.finish()
    batches = bench.server.rank(RUN).batches
    assert [batch.lost for batch in batches] == [None, (3, 11), None, None, None]
    assert [r["step"] for r in bench.server.rows(RUN)] == [0, 1, 2, *range(12, 21)]


def test_a_step_the_server_refuses_is_named_lost_and_its_neighbours_arrive() -> None:
    bench = Bench(batch_steps=8)
    server_put = bench.server.request

    def refuse_step_5(method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        before = {key: list(rank.bodies) for key, rank in bench.server.ranks.items()}
        answer = server_put(method, path, body, headers)
        record = bench.server.rank(RUN)
        if method == "PUT" and record.batches and 5 in record.batches[-1].step:
            record.bodies[:] = before.get((RUN, 0), [])
            del record.batches[len(record.bodies) :]
            return Answer(422, {"detail": "steps[0].loss: nobody likes it"}, "")
        return answer

    bench.server.request = refuse_step_5  # type: ignore[method-assign]
    bench.delivery.accept([row(step) for step in range(10)])
    bench.finish()
    assert [r["step"] for r in bench.server.rows(RUN)] == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert [b.lost for b in bench.server.rank(RUN).batches if b.lost] == [(5, 5)]


def test_a_body_that_is_too_large_is_halved() -> None:
    bench = Bench(batch_steps=8)
    server_put = bench.server.request

    def at_most_2(method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        if method == "PUT" and len(body) > 900:
            return Answer(413, {"detail": "too large"}, "")
        return server_put(method, path, body, headers)

    bench.server.request = at_most_2  # type: ignore[method-assign]
    bench.delivery.accept([row(step) for step in range(8)])
    bench.finish()
    assert_same(bench.server.rows(RUN), [expected(step) for step in range(8)])


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_token_stops_the_sending_and_is_said_once(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    bench.server.request = lambda *args: Answer(status, {"detail": "no"}, "")  # type: ignore[method-assign]
    for step in range(20):
        bench.delivery.accept([row(step)])
        bench.work()
    bench.finish()
    said = [r.getMessage() for r in caplog.records if "token" in r.getMessage()]
    assert len(said) == 1
    assert "FLOATSCOPE_TOKEN" in said[0]
    assert bench.delivery.undelivered == 0, "nothing is kept for a server that will not have it"


def test_retry_after_is_obeyed_and_retries_slow_down() -> None:
    bench = Bench()
    bench.wire.script = ["none", "busy"]
    bench.delivery.accept([row(0), row(1), row(2)])
    assert bench.delivery.work() == 0.0  # the run is known
    assert (bench.delivery.work() or 0.0) >= 2.0
    pauses = []
    bench.wire.script = ["request lost"] * 12
    bench.now += 10.0
    for _ in range(12):
        pauses.append(bench.delivery.work() or 0.0)
        bench.now += pauses[-1]
    assert pauses[-1] > 10
    assert max(pauses) <= 30


def test_settings_of_every_answer_are_passed_on() -> None:
    bench = Bench()
    bench.server.settings = {"stats_every": 1, "until_step": 50}
    bench.delivery.accept([row(0)])
    bench.finish()
    assert bench.seen_settings
    assert all(found == {"stats_every": 1, "until_step": 50} for found in bench.seen_settings)


def test_rows_that_do_not_fit_into_memory_are_dropped_from_the_front_and_counted() -> None:
    bench = Bench(most_rows=10)
    bench.wire.script = ["request lost"] * 3
    for step in range(40):
        bench.delivery.accept([row(step)])
    bench.finish()
    rows = bench.server.rows(RUN)
    assert [r["step"] for r in rows] == list(range(30, 40))
    assert rows[0]["agent_dropped_steps"] == 30.0


def test_abort_ends_everything() -> None:
    bench = Bench()
    bench.delivery.accept([row(0)])
    bench.delivery.abort()
    bench.delivery.finish("crashed", "why")
    bench.work()
    assert bench.delivery.is_done
    assert bench.wire.is_aborted
