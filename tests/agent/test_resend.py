"""``floatscope resend``: exactly once, with the status that was noted; what others work with is let alone."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from floatscope.client import Answer, Transport
from floatscope.resend import spools
from floatscope.resend.cli import main
from floatscope.resend.spools import Resent, resend, spools_in
from floatscope.spool import Spool
from tests.agent.fake_server import FakeServer, HttpServer
from tests.agent.jobs import Job
from tests.agent.test_delivery import RUN, Bench, Wire, row


def left_behind(
    folder: Path, server: FakeServer, steps: range, *, ending: str | None = None, rank: int = 0
) -> Path:
    """What a process leaves that was killed, or ended while the server was away."""
    path = folder / RUN / f"rank{rank}.spool"
    bench = Bench(server=server, spool=path)
    bench.delivery._outbox._about = lambda: {
        "run": {"run_id": RUN, "name": "of old"},
        "rank": rank,
        "url": None,
    }
    bench.wire.script = ["request lost"] * 1000
    for step in steps:
        bench.delivery.accept([row(step)])
        bench.now += 2.0
        bench.delivery.work()
    if ending is not None:
        bench.delivery.finish(ending, "why")
        bench.delivery.work()
        bench.delivery.abort()
        bench.delivery.work()
    bench.delivery._outbox.close(is_all_said=False)  # a lock goes with its process
    return path


def send(path: Path, server: FakeServer) -> Resent:
    return resend(path, connect=lambda url: Wire(server), sleep=lambda seconds: None)


@pytest.mark.parametrize("ending", [None, "finished", "failed", "crashed"])
def test_all_steps_arrive_and_the_run_ends_as_it_was_noted(tmp_path: Path, ending: str | None) -> None:
    server = FakeServer()
    path = left_behind(tmp_path, server, range(20), ending=ending)
    resent = send(path, server)
    assert (resent.state, resent.steps, resent.left, resent.ending) == (
        "delivered",
        20,
        0,
        ending or "crashed",
    )
    assert [r["step"] for r in server.rows(RUN)] == list(range(20))
    (said,) = [body for _, body in server.finished]
    assert said["status"] == (ending or "crashed")
    assert said["reason"] == "why" if ending else "without saying how" in said["reason"]
    assert server.runs[RUN]["name"] == "of old"
    assert not path.exists()
    assert not path.parent.exists()


def test_what_the_server_has_is_not_doubled(tmp_path: Path) -> None:
    server = FakeServer()
    path = tmp_path / RUN / "rank0.spool"
    bench = Bench(server=server, spool=path)
    bench.delivery.accept([row(step) for step in range(9)])
    bench.wire.script = ["none", "none", "answer lost"] + ["request lost"] * 100
    for _ in range(8):
        bench.now += 0.3
        bench.delivery.work()
    assert len(server.rank(RUN).bodies) == 2
    assert send(path, server).state == "delivered"
    assert [r["step"] for r in server.rows(RUN)] == list(range(9))


def test_a_run_that_has_ended_is_neither_opened_nor_ended_again(tmp_path: Path) -> None:
    server = FakeServer()
    whole = Bench(server=server)
    whole.delivery.accept([row(step) for step in range(3)])
    whole.finish()
    path = left_behind(tmp_path, server, range(5), ending="finished", rank=3)
    before = len(server.requests)
    assert send(path, server) == Resent(path, RUN, 3, "delivered", 5, 0)
    assert [r["step"] for r in server.rows(RUN, 3)] == list(range(5))
    assert server.statuses[RUN] == "finished"
    assert all(method != "POST" for method, _ in server.requests[before:])


def test_a_run_that_another_process_goes_on_with_is_not_ended(tmp_path: Path) -> None:
    server = FakeServer()
    path = left_behind(tmp_path, server, range(4))
    spool = Spool.open(path, limit_bytes=2**20)
    spool.stamp(next(iter(spool.entries.values())), 0)
    spool.close()
    other = Bench(server=server)  # on another machine, with a spool of its own
    other.delivery.accept([row(step) for step in range(100, 103)])
    other.work()
    resent = send(path, server)
    assert (resent.state, resent.ending) == ("delivered", None)
    assert server.finished == []
    assert sorted(r["step"] for r in server.rows(RUN)) == [0, 1, 2, 3, 100, 101, 102]


def test_a_spool_where_all_was_delivered_only_tells_the_end(tmp_path: Path) -> None:
    server = FakeServer()
    path = tmp_path / RUN / "rank0.spool"
    bench = Bench(server=server, spool=path)
    bench.delivery.accept([row(step) for step in range(6)])
    bench.work()  # then it is killed
    assert send(path, server).ending == "crashed"
    assert [r["step"] for r in server.rows(RUN)] == list(range(6))
    assert not path.exists()


def test_a_server_that_is_away_costs_nothing(tmp_path: Path) -> None:
    server = FakeServer()
    path = left_behind(tmp_path, server, range(5))
    wire = Wire(server)
    wire.script = ["none", "none", *["request lost"] * 20]  # it goes away in the middle
    resent = resend(path, connect=lambda url: wire, sleep=lambda seconds: None)
    assert (resent.state, resent.left) == ("away", 5)
    wire.script = ["request lost"] * 20
    assert resend(path, connect=lambda url: wire, sleep=lambda seconds: None).state == "away"
    assert send(path, server).steps == 5
    assert [r["step"] for r in server.rows(RUN)] == list(range(5))


def test_a_refused_token_is_told_and_nothing_is_lost(tmp_path: Path) -> None:
    server = FakeServer()
    path = left_behind(tmp_path, server, range(5))
    server.token = "right"
    resent = send(path, server)
    assert (resent.state, resent.left) == ("refused", 5)
    assert "401" in (resent.detail or "")
    server.token = None
    assert send(path, server).steps == 5


def test_garbage_in_place_of_a_server_is_no_delivery(tmp_path: Path) -> None:
    server = FakeServer()
    path = left_behind(tmp_path, server, range(5))

    class Page(Wire):
        def request(self, *args: Any) -> Answer:
            return Answer(200, None, "<html>welcome</html>")

    def connect(url: str | None) -> Transport:
        return Page(server)

    assert resend(path, connect=connect, sleep=lambda seconds: None).state == "away"
    assert send(path, server).steps == 5


def test_where_spools_are_looked_for(tmp_path: Path) -> None:
    for name in ("a/rank0.spool", "a/rank1.spool", "b/rank0.spool"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "a" / "rank0.jsonl").touch()
    assert len(spools_in(tmp_path)) == 3
    assert len(spools_in(tmp_path / "a")) == 2
    assert spools_in(tmp_path / "b" / "rank0.spool") == [tmp_path / "b" / "rank0.spool"]
    assert spools_in(tmp_path / "nothing") == []


def test_a_description_that_is_gone_costs_only_the_name(tmp_path: Path) -> None:
    server = FakeServer()
    path = left_behind(tmp_path, server, range(5))
    (path / "run.json").write_text("{")
    assert send(path, server).steps == 5
    assert server.runs[RUN]["name"] == RUN


def test_the_command(tmp_path: Path, server: HttpServer, capsys: pytest.CaptureFixture[str]) -> None:
    path = left_behind(tmp_path, server.server, range(7))
    assert main([str(tmp_path), "--list"]) == 0
    assert "7 steps wait" in capsys.readouterr().out
    assert main([str(tmp_path)]) == 1, "no server is known"
    assert "FLOATSCOPE_URL" in capsys.readouterr().out
    assert main([str(tmp_path), "--server", server.url, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["delivered"], said["left"]) == (7, 0)
    assert said["spools"][0]["ending"] == "crashed"
    assert not path.exists()
    assert main([str(tmp_path), "--server", server.url]) == 0
    assert "nothing waits" in capsys.readouterr().out


def test_wrong_usage_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nowhere")]) == 2
    assert "no such folder" in capsys.readouterr().err
    assert main([str(tmp_path), "--server", "nonsense"]) == 2
    assert "http(s)://" in capsys.readouterr().err


def test_an_empty_fault_file_goes_with_its_process(tmp_path: Path, server: HttpServer) -> None:
    """What the fault handler opened and never wrote to is taken away once the process is gone."""
    job = Job(
        "train(range(5)); time.sleep(0.5); wait()",
        {"url": server.url, "spool_dir": str(tmp_path), "recorder_steps": 9},
    )
    job.wait_for("trained")
    fault = tmp_path / "p" / "rank0.fault.txt"
    assert fault.stat().st_size == 0
    assert main([str(tmp_path)]) == 0
    assert fault.exists(), "a living process may still write to it"
    job.end(signal.SIGKILL)
    assert main([str(tmp_path)]) == 0
    assert not fault.exists()
    assert (tmp_path / "p" / "rank0.recorder").exists()


def test_a_spool_of_a_living_process_is_left_alone(tmp_path: Path, server: HttpServer) -> None:
    path = left_behind(tmp_path, server.server, range(3))
    code = f"""
from pathlib import Path
from floatscope.spool import Spool
spool = Spool.open(Path({str(path)!r}), limit_bytes=2**20)
print("held", flush=True)
input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert send(path, server.server).state == "busy"
        assert server.server.rows(RUN) == []
        holder.communicate("\n")
    assert send(path, server.server).steps == 3


@pytest.mark.parametrize(
    ("url", "is_own", "asked"),
    [
        ("http://host:8321", True, "http://host:8321"),
        ("http://host:8321", False, None),
        ("http://host:x", True, None),
        ("file:///etc/passwd", True, None),
        (7, True, None),
    ],
)
def test_only_an_address_that_this_user_has_noted_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: object, is_own: bool, asked: str | None
) -> None:
    """The token goes along with the request, so the file of somebody else must not say where."""
    server = FakeServer()
    path = left_behind(tmp_path, server, range(3))
    about = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**about, "url": url}))
    monkeypatch.setattr(spools, "is_own", lambda file: is_own)
    found: list[str | None] = []

    def connect(noted: str | None) -> Transport:
        found.append(noted)
        return Wire(server)

    assert resend(path, connect=connect, sleep=lambda seconds: None).state == "delivered"
    assert found == [asked]
