"""Real processes, real signals, real sockets: however a training process ends and whatever the server does,
every step that was due is at the server exactly once in the end.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from floatscope.resend.cli import main as resend
from tests.agent.fake_server import FakeServer, HttpServer

LOOP = """
    import os, signal, sys, time
    import floatscope
    monitor = floatscope.watch(run="p", run_id="p", gpu=False, strict=True, recorder_steps=0, **SETTINGS)
    def train(steps, pause=0.0):
        for step in steps:
            monitor.step(step, loss=1.0 / (step + 1))
            time.sleep(pause)
    def wait():
        print("trained", flush=True)
        time.sleep(60)
"""


class Job:
    """A training process of its own."""

    def __init__(self, code: str, settings: dict[str, Any]) -> None:
        program = textwrap.dedent(LOOP).replace("SETTINGS", repr(settings)) + textwrap.dedent(code)
        self.process = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def wait_for(self, line: str) -> None:
        """Until it has printed this line."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == line, self.process.communicate()

    def end(self, with_signal: int | None = None) -> tuple[int, str]:
        """Exit code and standard error, after a signal if one is given."""
        if with_signal is not None:
            self.process.send_signal(with_signal)
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said


def until(what: Callable[[], object]) -> None:
    """Waits for something that comes by itself."""
    deadline = time.monotonic() + 30
    while not what():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


def steps_on_disk(folder: Path) -> int:
    """Steps in the spool of a process that is gone."""
    from floatscope.resend.spools import waiting

    return sum(waiting(path).left for path in folder.glob("p/rank*.spool"))


@pytest.fixture
def given(server: HttpServer, tmp_path: Path) -> dict[str, Any]:
    return {"url": server.url, "spool_dir": str(tmp_path), "flush_every_s": 0.1, "close_timeout_s": 0.5}


def hang(handler: Any) -> bool:
    return bool(handler.rfile.read(1))  # waits for a byte that never comes


def garbage(handler: Any) -> bool:
    handler.wfile.write(b"\x00\xff\r\n\r\nnot HTTP at all\r\n")
    handler.close_connection = True
    return True


def login_page(handler: Any) -> bool:
    page = b"<html>please log in</html>"
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(page)))
    handler.end_headers()
    handler.wfile.write(page)
    return True


def broken(handler: Any) -> bool:
    handler.send_error(503)
    return True


def gone(handler: Any) -> bool:
    handler.connection.close()
    return True


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


def test_sigterm_is_told_and_ends_the_process_as_ever(server: HttpServer, given: dict[str, Any]) -> None:
    job = Job("train(range(10)); wait()", given)
    job.wait_for("trained")
    code, _ = job.end(signal.SIGTERM)
    assert code == -signal.SIGTERM
    assert server.server.finished == [("p", {"status": "failed", "reason": "SIGTERM"})]
    assert [r["step"] for r in server.server.rows("p")] == list(range(10))


def test_sigterm_in_the_middle_of_a_step_with_its_locks_taken_still_ends_the_process(
    given: dict[str, Any],
) -> None:
    code = """
    train(range(3))
    with monitor._catalog._lock:
        print("trained", flush=True)
        time.sleep(60)
    """
    job = Job(code, given)
    job.wait_for("trained")
    assert job.end(signal.SIGTERM)[0] == -signal.SIGTERM


STUCK = "import hashlib; hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)  # native code, for half an hour"


def test_sigterm_ends_a_process_whose_main_thread_is_stuck_in_native_code(
    server: HttpServer, given: dict[str, Any]
) -> None:
    job = Job(f"train(range(5)); print('trained', flush=True); {STUCK}", given)
    job.wait_for("trained")
    assert job.end(signal.SIGTERM)[0] == -signal.SIGTERM
    assert server.server.finished == [("p", {"status": "failed", "reason": "SIGTERM"})]
    assert [r["step"] for r in server.server.rows("p")] == list(range(5))


def test_sigterm_of_a_child_is_not_that_of_its_parent(server: HttpServer, given: dict[str, Any]) -> None:
    code = """
    import hashlib, threading
    train(range(5))
    child = os.fork()
    if child == 0:
        print("trained", flush=True)
        time.sleep(60)
    threading.Timer(0.5, os.kill, (child, signal.SIGTERM)).start()
    hashlib.pbkdf2_hmac("sha256", b"", b"", ROUNDS)  # some seconds in native code
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGTERM
    monitor.finish()
    """
    began = time.perf_counter()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 200_000)
    rounds = int(200_000 * 6.0 / (time.perf_counter() - began))
    job = Job(code.replace("ROUNDS", str(rounds)), given)
    job.wait_for("trained")
    assert job.end()[0] == 0
    assert server.server.finished == [("p", {"status": "finished", "reason": None})]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_handler_of_the_user_is_left_alone(server: HttpServer, given: dict[str, Any], when: str) -> None:
    own = 'signal.signal(signal.SIGTERM, lambda *a: (print("mine", flush=True), sys.exit(5)))\n'
    body = "train(range(5)); wait()\n"
    program = textwrap.dedent(LOOP).replace("SETTINGS", repr(given))
    program = (
        program.replace("import floatscope\n", "import floatscope\n" + own, 1) + body
        if when == "before"
        else program + own + body
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "trained\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "mine\n"
        assert process.wait() == 5
    assert server.server.finished == [("p", {"status": "finished", "reason": None})], "sys.exit is an end"


def test_two_monitors_are_both_told_of_sigterm(server: HttpServer, given: dict[str, Any]) -> None:
    code = """
    other = floatscope.watch(run="q", run_id="q", gpu=False, recorder_steps=0, **SETTINGS)
    other.step(loss=1.0)
    train(range(5)); wait()
    """.replace("SETTINGS", repr(given))
    job = Job(code, given)
    job.wait_for("trained")
    assert job.end(signal.SIGTERM)[0] == -signal.SIGTERM
    assert sorted(run for run, _ in server.server.finished) == ["p", "q"]


def test_after_finish_sigterm_is_as_it_was() -> None:
    code = """
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    files = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else None
    monitor.finish()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.set_wakeup_fd(-1) == -1
    for _ in range(3):
        again = floatscope.watch(run="again", gpu=False, recorder_steps=0, **SETTINGS)
        again.finish()
    assert files is None or len(os.listdir("/proc/self/fd")) <= files, "no descriptor is left open"
    """.replace("SETTINGS", repr({"mode": "local"}))
    assert Job(code, {"mode": "local"}).end()[0] == 0


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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
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
    code_, said = Job(code, given | {"close_timeout_s": 30.0}).end()
    timer.join()
    assert code_ == 0
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
