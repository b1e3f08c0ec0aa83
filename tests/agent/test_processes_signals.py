"""SIGTERM: it is told, the record is whole, and the process ends by it as it would have without us."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from tests.agent.fake_server import HttpServer
from tests.agent.jobs import LOOP, Job


@pytest.fixture
def given(server: HttpServer, tmp_path: Path) -> dict[str, Any]:
    return {"url": server.url, "spool_dir": str(tmp_path), "flush_every_s": 0.1, "close_timeout_s": 0.5}


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


def test_a_handler_of_the_user_is_waited_for_while_the_main_thread_is_in_native_code(
    server: HttpServer, given: dict[str, Any]
) -> None:
    """It may write a checkpoint, which a long step must not cost."""
    code = """
    import hashlib
    signal.signal(signal.SIGTERM, lambda *a: (sys.stderr.write("saved"), sys.exit(5)))
    train(range(5)); print("trained", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", ROUNDS)  # some seconds longer than a stuck process is given
    wait()
    """
    began = time.perf_counter()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 200_000)
    rounds = int(200_000 * 6.0 / (time.perf_counter() - began))
    job = Job(code.replace("ROUNDS", str(rounds)), given)
    job.wait_for("trained")
    code_of_exit, said = job.end(signal.SIGTERM)
    assert (code_of_exit, "saved" in said) == (5, True)


def test_a_forked_child_in_native_code_dies_of_sigterm_at_once(
    server: HttpServer, given: dict[str, Any]
) -> None:
    code = f"""
    train(range(5))
    child = os.fork()
    if child == 0:
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        print("trained", flush=True)
        {STUCK}
    time.sleep(0.5)
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    monitor.finish()
    """
    job = Job(code, given)
    job.wait_for("trained")
    assert job.end()[0] == 0


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


@pytest.mark.parametrize("ended", ["neither", "older", "newer"])
def test_two_monitors_of_a_process_that_is_stuck_in_native_code(
    server: HttpServer, given: dict[str, Any], ended: str
) -> None:
    """Both are told; where one has ended before, the other still ends the process."""
    code = f"""
    other = floatscope.watch(run="q", run_id="q", gpu=False, recorder_steps=0, **{given!r})
    other.step(loss=1.0)
    train(range(5))
    if {ended!r} == "older": monitor.finish()
    if {ended!r} == "newer": other.finish()
    print("trained", flush=True); {STUCK}
    """
    job = Job(code, given)
    job.wait_for("trained")
    assert job.end(signal.SIGTERM)[0] == -signal.SIGTERM
    ends = {run: end["status"] for run, end in server.server.finished}
    assert ends == {
        "p": "finished" if ended == "older" else "failed",
        "q": "finished" if ended == "newer" else "failed",
    }


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
