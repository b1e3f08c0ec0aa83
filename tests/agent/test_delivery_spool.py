"""Delivery with a spool: a process that is killed at any moment, a server that fails in every way, a disk
that refuses: each step that was due on disk is there exactly once, bit-equal, in the end.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope.client import Answer, TransportError
from floatscope.outbox import Outbox
from floatscope.parcels import Parcel
from floatscope.spool import Spool
from tests.agent.fake_server import FakeServer
from tests.agent.test_delivery import MISHAPS, RUN, Bench, assert_same, expected, row

FORGIVING = [
    mishap for mishap in MISHAPS if mishap != "backup"
]  # a killed process has no history to send again


def plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows without the mark of a new process."""
    return [{key: value for key, value in found.items() if key != "resumed"} for found in rows]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_step_arrives_once_however_often_the_process_is_killed(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("run") / "rank0.spool"
    server = FakeServer()
    step = 0
    now = 0.0
    for _ in range(data.draw(st.integers(1, 5))):  # lives of the run
        bench = Bench(batch_steps=data.draw(st.integers(1, 6)), server=server, spool=path)
        bench.now = now
        bench.wire.script = data.draw(st.lists(st.sampled_from(FORGIVING), max_size=12))
        for size in data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)):
            bench.delivery.accept([row(s, tensors=s % 2 == 0) for s in range(step, step + size)])
            step += size
            bench.now += data.draw(st.sampled_from([0.0, 0.5, 2.0]))
            for _ in range(data.draw(st.integers(0, 5))):
                bench.now += bench.delivery.work() or 0.1
        bench.now += 2.0  # what is flush_every_s old is on disk; then the process is gone
        bench.delivery._outbox.keep(bench.now)
        now = bench.now
    last = Bench(server=server, spool=path)
    last.now = now
    last.finish()
    assert_same(plain(server.rows(RUN)), [expected(s, tensors=s % 2 == 0) for s in range(step)])
    assert not path.exists(), "everything is delivered: the spool goes"


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_disk_that_comes_and_goes_costs_nothing_while_the_process_lives(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("run") / "rank0.spool"
    bench = Bench(batch_steps=data.draw(st.integers(1, 6)), spool=path)
    pwrite = os.pwrite

    def sometimes_full(file: int, content: bytes, at: int) -> int:
        if len(content) > 16 and data.draw(st.booleans()):
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(file, content, at)

    bench.wire.script = data.draw(st.lists(st.sampled_from(FORGIVING), max_size=12))
    step = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwrite", sometimes_full)
        for size in data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=6)):
            bench.delivery.accept([row(s) for s in range(step, step + size)])
            step += size
            for _ in range(data.draw(st.integers(0, 4))):
                bench.now += (bench.delivery.work() or 0.1) + data.draw(st.sampled_from([0.0, 1.0, 11.0]))
        bench.finish()
    assert_same(bench.server.rows(RUN), [expected(s) for s in range(step)])


def test_a_disk_that_takes_nothing_any_more_does_not_stop_the_delivery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Remounted read-only with small batches on it: they are read and sent, only nothing is noted."""
    path = tmp_path / "rank0.spool"
    bench = Bench(batch_steps=4, spool=path)
    bench.wire.script = ["request lost"] * 60
    for step in range(60):
        bench.delivery.accept([row(step)])
        bench.now += 2.0
        bench.delivery.work()

    def read_only(*args: Any) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    bench.wire.script = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", read_only)
        for _ in range(200):
            bench.now += bench.delivery.work() or 2.0
    assert_same(bench.server.rows(RUN), [expected(step) for step in range(60)])


def test_hours_without_a_server_are_caught_up_in_large_batches(tmp_path: Path) -> None:
    path = tmp_path / "rank0.spool"
    bench = Bench(batch_steps=50, spool=path)
    bench.wire.script = ["request lost"] * 100
    for step in range(300):  # one step every two seconds: every step is a batch of its own
        bench.delivery.accept([row(step)])
        bench.now += 2.0
        bench.delivery.work()
    assert len(entries_of(bench)) == 300
    assert bench.delivery._outbox.in_memory == 0
    bench.wire.script.clear()
    bench.finish()
    assert_same(bench.server.rows(RUN), [expected(step) for step in range(300)])
    assert len(bench.server.rank(RUN).bodies) == 6


def entries_of(bench: Bench) -> list[object]:
    spool = bench.delivery._outbox.spool
    assert spool is not None
    return list(spool.entries.values())


def test_a_killed_process_sends_under_the_same_seq_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "rank0.spool"
    server = FakeServer()
    first = Bench(server=server, spool=path)
    first.delivery.accept([row(0), row(1), row(2)])
    first.wire.script = ["none", "answer lost"]
    first.now += 2.0
    first.delivery.work()  # registers
    first.delivery.work()  # sends; the server has it, the answer never comes
    (stored,) = server.rank(RUN).bodies
    second = Bench(server=server, spool=path)
    second.delivery.accept([row(3)])
    second.finish()
    assert server.rank(RUN).bodies[0] == stored
    assert [r["step"] for r in server.rows(RUN)] == [0, 1, 2, 3]
    assert [r.get("resumed") for r in server.rows(RUN)] == [None, None, None, 1.0]
    assert sum(path.startswith("/api") and "/batches/0" in path for _, path in server.requests) == 2


def test_a_spool_that_a_living_process_holds_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def busy(path: Path, *, limit_bytes: int) -> Spool:
        raise BlockingIOError(errno.EAGAIN, "another process works with it")

    monkeypatch.setattr(Spool, "open", busy)
    bench = Bench(spool=tmp_path / "s")
    bench.delivery.accept([row(step) for step in range(5)])
    bench.finish()
    assert [r["step"] for r in bench.server.rows(RUN)] == list(range(5))
    assert sum("cannot be kept on disk" in record.getMessage() for record in caplog.records) == 1


def test_over_its_bound_a_spool_loses_detail_slows_the_sampling_and_says_what_went(tmp_path: Path) -> None:
    bench = Bench(batch_steps=64, spool=tmp_path / "s", limit_bytes=2**20)
    bench.wire.script = ["request lost"] * 10_000
    total = 12_000
    for step in range(0, total, 100):
        rows = [row(s) for s in range(step, step + 100)]
        for each in rows:
            each.scalars |= {f"more{k}": float((each.step * 2654435761 + k) % 1e9) / 7 for k in range(30)}
        bench.delivery.accept(rows)
        bench.now += 30.0
        bench.delivery.work()
    bench.wire.script.clear()
    bench.finish()
    found = bench.server.rows(RUN)
    dropped = total - len(found)
    assert dropped > 0
    steps = [r["step"] for r in found]
    assert steps == sorted(set(steps))
    assert steps[-1000:] == list(range(total - 1000, total)), "the newest are there"
    assert max(r.get("agent_thinned_steps", 0.0) for r in found) > 0
    assert max(r.get("agent_dropped_steps", 0.0) for r in found) > 0
    assert not [b for b in bench.server.rank(RUN).batches if b.lost], "nothing that had no seq leaves a hole"
    assert bench.pressures[:3] == [1, 2, 3]
    assert bench.pressures[-1] == 0


def test_a_bound_that_was_lowered_makes_room_too(tmp_path: Path) -> None:
    """A spool that an earlier life filled beyond what is allowed now is thinned, not refused for ever."""
    first = Bench(spool=tmp_path / "s")
    first.wire.script = ["request lost"] * 1000
    for step in range(600):
        first.delivery.accept([row(step)])
        first.now += 2.0
        first.delivery._outbox.keep(first.now)
    spool = first.delivery._outbox.spool
    assert spool is not None
    size = spool.size
    first.delivery._outbox.close(is_all_said=False)
    second = Bench(spool=tmp_path / "s", limit_bytes=size // 2)
    second.delivery.accept([row(600)])
    second.now = first.now + 2.0
    second.delivery._outbox.keep(second.now)
    spool = second.delivery._outbox.spool
    assert spool is not None
    assert spool.size <= size // 2
    assert second.delivery._outbox.in_memory == 0
    second.finish()
    rows = second.server.rows(RUN)
    assert [found["step"] for found in rows] == list(range(601))


def test_a_batch_that_cannot_be_packed_does_not_hold_up_those_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is given up and counted; the failure is the guard's to tell."""
    bench = Bench(spool=tmp_path / "s", is_strict=False)
    pack = Outbox._encode

    def failing(outbox: Outbox, parcel: Parcel, **given: Any) -> Any:
        if parcel.first_step == 0:
            raise ValueError("a name that no protocol knows")
        return pack(outbox, parcel, **given)

    monkeypatch.setattr(Outbox, "_encode", failing)
    bench.delivery.accept([row(step) for step in range(9)])
    bench.now += 2.0
    with pytest.raises(ValueError, match="no protocol"):
        bench.delivery.work()
    bench.finish()
    rows = bench.server.rows(RUN)
    assert [found["step"] for found in rows] == list(range(3, 9))
    assert rows[0]["agent_dropped_steps"] == 3.0


def test_a_token_that_is_refused_leaves_the_steps_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "rank0.spool"
    bench = Bench(spool=path)
    accept = bench.server.request
    bench.server.request = lambda *args: Answer(401, {"detail": "no"}, "")  # type: ignore[method-assign]
    for step in range(20):
        bench.delivery.accept([row(step)])
        bench.now += 2.0
        bench.delivery.work()
    bench.finish()
    assert path.exists()
    bench.server.request = accept  # type: ignore[method-assign]
    later = Bench(server=bench.server, spool=path)
    later.finish()
    assert [r["step"] for r in bench.server.rows(RUN)] == list(range(20))


def test_bytes_on_disk_that_are_damaged_cost_their_batch_and_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "rank0.spool"
    bench = Bench(batch_steps=1, spool=path)
    bench.wire.script = ["request lost"] * 50
    for step in range(10):
        bench.delivery.accept([row(step)])
        bench.now += 2.0
        bench.delivery.work()
    entry = list(bench.delivery._outbox.spool.entries.values())[4]  # type: ignore[union-attr]
    content = bytearray(entry.segment.path.read_bytes())
    content[entry.frame.payload_at + 5] ^= 0xFF
    entry.segment.path.write_bytes(content)
    later = Bench(batch_steps=1, server=bench.server, spool=path, is_strict=False)
    later.delivery.accept([row(10)])
    later.finish()
    assert [r["step"] for r in bench.server.rows(RUN)] == [0, 1, 2, 3, 5, 6, 7, 8, 9, 10]


def test_verdicts_and_the_runs_address_in_answers_are_passed_on() -> None:
    server = FakeServer()
    bench = Bench(server=server)
    ask = server.request

    def speak(method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        answer = ask(method, path, body, headers)
        said: dict[str, Any] = (
            {"verdict": {"status": "healthy"}} if method == "PUT" else {"url": "http://x/r"}
        )
        return Answer(answer.status, {**(answer.body or {}), **said}, "")

    server.request = speak  # type: ignore[method-assign]
    bench.delivery.accept([row(0)])
    bench.finish()
    assert bench.verdicts == [{"status": "healthy"}]
    assert bench.urls == ["http://x/r"]


def test_a_transport_error_is_an_answer_of_its_own(tmp_path: Path) -> None:
    bench = Bench(spool=tmp_path / "s")

    def never(*args: object) -> Answer:
        raise TransportError("away")

    bench.wire.request = never  # type: ignore[method-assign, assignment]
    bench.delivery.accept([row(0)])
    for _ in range(20):
        bench.now += bench.delivery.work() or 0.2
    bench.delivery.abort()
    bench.delivery.finish("crashed", "gone")
    bench.work()
    assert bench.delivery.is_done
    left = bench.delivery.left_behind() or ""
    assert "1 steps could not be delivered (no answer from the server (away)) and are kept in" in left
    assert bench.delivery.left_behind() is None, "it is said once"
