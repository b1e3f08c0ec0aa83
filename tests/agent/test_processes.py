"""Real processes, real signals, real sockets: however a training process ends and whatever the server does,
every step that was due is at the server exactly once in the end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from floatscope.resend.cli import main as resend
from tests.agent.fake_server import FakeServer, HttpServer
from tests.agent.jobs import Job, broken, garbage, gone, hang, login_page, until


def steps_on_disk(folder: Path) -> int:
    """Steps in the spool of a process that is gone."""
    from floatscope.resend.spools import waiting

    return sum(waiting(path).left for path in folder.glob("p/rank*.spool"))


@pytest.fixture
def given(server: HttpServer, tmp_path: Path) -> dict[str, Any]:
    return {"url": server.url, "spool_dir": str(tmp_path), "flush_every_s": 0.1, "close_timeout_s": 0.5}


@pytest.mark.parametrize("misbehave", [hang, garbage, login_page, broken, gone])
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, None])
def test_what_a_server_did_not_take_is_delivered_later_exactly_once(
    server: HttpServer,
    given: dict[str, Any],
    tmp_path: Path,
    misbehave: Callable[[Any], bool],
    ending: signal.Signals | None,
) -> None:
    server.misbehave = misbehave
    job = Job(
        "train(range(40)); time.sleep(1.0); wait() if KILLED else None".replace(
            "KILLED", str(ending is not None)
        ),
        given,
    )
    if ending is not None:
        job.wait_for("trained")
    code, said = job.end(ending)
    assert code == (0 if ending is None else -ending)
    assert steps_on_disk(tmp_path) == 40
    assert ("floatscope resend" in said) == (ending != signal.SIGKILL)
    server.misbehave = lambda handler: False
    assert resend([str(tmp_path), "--server", server.url]) == 0
    assert [r["step"] for r in server.server.rows("p")] == list(range(40))
    (end,) = [body for _, body in server.server.finished]
    told = {None: ("finished", None), signal.SIGTERM: ("failed", "SIGTERM")}
    assert end["status"] == told.get(ending, ("crashed", None))[0]
    if ending == signal.SIGTERM:
        assert end["reason"] == "SIGTERM"
    assert not (tmp_path / "p").exists()


def test_killed_again_and_again_and_restarted_nothing_is_lost_or_doubled(
    server: HttpServer, given: dict[str, Any], tmp_path: Path
) -> None:
    step = 0
    for life in range(4):
        server.misbehave = hang if life % 2 else (lambda handler: False)
        job = Job(f"train(range({step}, {step + 25})); time.sleep(0.6); wait()", given)
        job.wait_for("trained")
        assert job.end(signal.SIGKILL)[0] == -signal.SIGKILL
        step += 25
    server.misbehave = lambda handler: False
    assert Job(f"train(range({step}, {step + 25})); monitor.finish()", given).end()[0] == 0
    rows = server.server.rows("p")
    assert [r["step"] for r in rows] == list(range(step + 25))
    assert [r["step"] for r in rows if r.get("resumed")] == [25, 50, 75, 100]
    assert server.server.finished == [("p", {"status": "finished", "reason": None})]
    assert not (tmp_path / "p").exists()


def test_a_server_that_comes_late_gets_everything_while_the_run_goes_on(
    server: HttpServer, given: dict[str, Any], tmp_path: Path
) -> None:
    server.misbehave = broken
    code = "train(range(60), pause=0.02); print('trained', flush=True); time.sleep(1.0); monitor.finish()"
    job = Job(code, given | {"close_timeout_s": 30.0})
    job.wait_for("trained")
    server.misbehave = lambda handler: False
    assert job.end()[0] == 0
    assert [r["step"] for r in server.server.rows("p")] == list(range(60))
    assert not (tmp_path / "p").exists()


def test_a_server_that_goes_back_to_a_backup_is_brought_up_again(
    server: HttpServer, given: dict[str, Any]
) -> None:
    job = Job("train(range(50), pause=0.03); wait()", given)
    until(lambda: len(server.server.rank("p").bodies) >= 4)
    with server.lock:
        server.server.forget("p", 0, keep=1)
    job.wait_for("trained")
    until(lambda: server.server.rows("p") and server.server.rows("p")[-1]["step"] == 49)
    job.end(signal.SIGTERM)
    assert [r["step"] for r in server.server.rows("p")] == list(range(50))


def test_a_forked_child_neither_speaks_nor_keeps_the_spool_locked(
    server: HttpServer, given: dict[str, Any], tmp_path: Path
) -> None:
    server.misbehave = broken
    code = """
    train(range(5))
    time.sleep(0.5)
    child = os.fork()
    if child == 0:
        monitor.step(99, loss=1.0)
        monitor.finish()
        time.sleep(60)
    print(child, flush=True)
    wait()
    """
    job = Job(code, given)
    assert job.process.stdout is not None
    child = int(job.process.stdout.readline())
    job.wait_for("trained")
    job.process.kill()
    job.process.wait(30)
    server.misbehave = lambda handler: False
    try:
        assert resend([str(tmp_path), "--server", server.url]) == 0, "the child must not hold the lock"
        assert [r["step"] for r in server.server.rows("p")] == list(range(5))
        os.kill(child, signal.SIGTERM)
    finally:
        job.process.communicate()
    assert [body["status"] for _, body in server.server.finished] == ["crashed"]


def test_children_started_both_ways_work_beside_a_watched_parent(
    server: HttpServer, given: dict[str, Any], tmp_path: Path
) -> None:
    program = textwrap.dedent("""
        import multiprocessing, sys, time
        import floatscope
        def square(n):
            return n * n
        if __name__ == "__main__":
            monitor = floatscope.watch(run="p", run_id="p", gpu=False, recorder_steps=0, **SETTINGS)
            for step in range(10):
                monitor.step(step, loss=1.0)
                if step in (3, 6):
                    with multiprocessing.get_context("fork" if step == 3 else "spawn").Pool(2) as pool:
                        assert pool.map(square, range(4)) == [0, 1, 4, 9]
            monitor.finish()
    """).replace("SETTINGS", repr(given))
    script = tmp_path / "train.py"
    script.write_text(program)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [r["step"] for r in server.server.rows("p")] == list(range(10))
    assert server.server.finished == [("p", {"status": "finished", "reason": None})]


def test_a_folder_that_cannot_be_written_costs_nothing_but_the_spool(
    server: HttpServer, given: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "p").write_text("a file where a folder should be")
    code, said = Job("train(range(20)); monitor.finish()", given).end()
    assert code == 0
    assert said.count("cannot be kept on disk") == 1
    assert [r["step"] for r in server.server.rows("p")] == list(range(20))


def test_a_full_disk_costs_nothing_but_the_spool(server: HttpServer, given: dict[str, Any]) -> None:
    code = """
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))  # any file ends at 2 kB
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    train(range(300), pause=0.005)
    monitor.finish()
    """
    server.misbehave = broken
    timer = threading.Timer(3.0, lambda: setattr(server, "misbehave", lambda handler: False))
    timer.start()
    exit_code, said = Job(code, given | {"close_timeout_s": 30.0}).end()
    timer.join()
    assert exit_code == 0
    assert said.count("cannot write to") == 1
    assert [r["step"] for r in server.server.rows("p")] == list(range(300))


def test_another_process_under_the_same_rank_goes_on_in_memory(
    server: HttpServer, given: dict[str, Any]
) -> None:
    first = Job("train(range(5)); wait()", given)
    first.wait_for("trained")
    code, said = Job("train(range(100, 105)); monitor.finish()", given).end()
    assert code == 0
    assert "another process" in said
    first.end(signal.SIGTERM)
    assert sorted(r["step"] for r in server.server.rows("p")) == [*range(5), *range(100, 105)]


def test_the_runs_address_is_said_once_on_standard_error(server: HttpServer, given: dict[str, Any]) -> None:
    ask = server.server.request

    def with_url(*args: Any) -> Any:
        answer = ask(*args)
        if args[0] == "POST" and answer.body is not None and args[1].endswith("/runs"):
            answer.body["url"] = "http://somewhere/runs/p"  # type: ignore[index]
        return answer

    server.server.request = with_url  # type: ignore[method-assign, assignment]
    for rank, times in ((0, 1), (1, 0)):
        _, said = Job("train(range(5)); monitor.finish()", given | {"rank": rank}).end()
        assert said.count("floatscope: watching this run at http://somewhere/runs/p") == times


def test_the_fake_server_keeps_the_contract() -> None:
    server = FakeServer()
    assert server.request("GET", "/api/v1/runs/none", b"", {}).status == 404
    server.request("POST", "/api/v1/runs", json.dumps({"run_id": "a"}).encode(), {})
    assert server.request("GET", "/api/v1/runs/a", b"", {}).body == {
        "run_id": "a",
        "status": "running",
        "ranks": [],
    }
