"""The flight recorder holds the last evidence, however the process dies. All with real processes."""

from __future__ import annotations

import faulthandler
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

import floatscope
from floatscope.recorder_notes import BETWEEN, IN_STEP, data_id_text
from floatscope.recorder_reading import Recording, read_file
from tests.agent.fake_server import HttpServer

LOOP = """
    import os, signal, sys, time
    import floatscope
    monitor = floatscope.watch(run="fly", run_id="fly", gpu=False, mode="local", strict=True, diagnose=False,
                               recipe={"name": "fp8_delayed_scaling"}, **SETTINGS)
    def train(first, last):
        for step in range(first, last):
            monitor.batch([1, 2], step=step, data_id=f"shard-7/{step}")
            time.sleep(0.002)
            monitor.step(step, loss=2.0 + step)
        monitor.batch([1, 2], step=last, data_id=f"shard-7/{last}")
        time.sleep(0.6)
"""


def run(code: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    """A process of its own that trains and dies as ``code`` says."""
    program = textwrap.dedent(LOOP).replace("SETTINGS", repr(settings)) + textwrap.dedent(code)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )


def recorder_of(spool: Path) -> Path:
    return spool / "fly" / "rank0.recorder"


def recorded(spool: Path) -> Recording:
    return read_file(recorder_of(spool))


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """Where the agent keeps its files (set for child processes too)."""
    return tmp_path / "spool"


def check_loop(recording: Recording, *, last: int) -> None:
    """The steps before, the step under way and its batch are there."""
    now = recording.now
    assert now is not None
    assert (now.step, now.ended, now.phase) == (last, last - 1, IN_STEP)
    assert now.data_id == f"shard-7/{last}"
    rows = {row.step: row for row in recording.rows()}
    assert set(range(last)) <= set(rows)
    assert [rows[step].scalars["loss"] for step in range(last)] == [2.0 + step for step in range(last)]
    assert recording.missing == 0


def test_sigkill(spool: Path) -> None:
    """After SIGKILL every step is there, the step under way and its batch, recipe and versions."""
    done = run("train(0, 40); os.kill(os.getpid(), signal.SIGKILL)")
    assert done.returncode == -signal.SIGKILL
    recording = recorded(spool)
    check_loop(recording, last=40)
    assert recording.ending is None
    assert recording.description["run"]["recipe"] == {"name": "fp8_delayed_scaling"}
    assert recording.description["versions"]["python"].startswith("3.")
    assert recording.description["run_id"] == "fly"


@pytest.mark.parametrize(
    ("death", "name", "said"),
    [
        ("os.abort()", signal.SIGABRT, "Fatal Python error: Aborted"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", signal.SIGSEGV, "Fatal Python error: Segmentation fault"),
    ],
)
def test_a_fatal_signal_leaves_the_stacks(spool: Path, death: str, name: int, said: str) -> None:
    """SIGABRT, which is how a CUDA error ends a process, and SIGSEGV leave Python's stacks beside."""
    done = run(f"def inner():\n    {death}\ntrain(0, 20); inner()")
    assert done.returncode == -name
    check_loop(recorded(spool), last=20)
    fault = (spool / "fly" / "rank0.fault.txt").read_text()
    assert fault.startswith(said)
    assert "in inner" in fault


@pytest.mark.parametrize("handler", [False, True])
def test_sigterm(spool: Path, handler: bool) -> None:
    """SIGTERM ends the process as it would without us, and is recorded; a handler of the user works."""
    own = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n" if handler else ""
    done = run(
        f"def inner():\n    os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)\ntrain(0, 20)\n{own}inner()"
    )
    assert done.returncode == (7 if handler else -signal.SIGTERM)
    ending = recorded(spool).ending
    assert ending is not None
    assert (ending.status, ending.signal) == (("finished", "") if handler else ("failed", "SIGTERM"))
    assert ("in inner" in ending.traceback) != handler


def test_a_worker_that_dies_leaves_no_stacks(spool: Path) -> None:
    """Children that are forked and die of signals do not write into the file of the process that trains."""
    code = """
    train(0, 3)
    for name in (signal.SIGTERM, signal.SIGABRT):
        child = os.fork()
        if child == 0:
            signal.raise_signal(name)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -name
    os._exit(0)
    """
    assert run(code).returncode == 0
    assert (spool / "fly" / "rank0.fault.txt").read_bytes() == b""


def test_an_uncaught_exception(spool: Path) -> None:
    """Type, message and traceback of the exception that ends the run."""
    run("def inner():\n    raise ValueError('bad ' + 'shard')\ntrain(0, 20); inner()")
    recording = recorded(spool)
    check_loop(recording, last=20)
    ending = recording.ending
    assert ending is not None
    assert (ending.status, ending.kind, ending.message) == ("crashed", "ValueError", "bad shard")
    assert "in inner" in ending.traceback
    assert not (spool / "fly" / "rank0.fault.txt").exists(), "an empty file is taken away"


def test_killed_while_it_ends(spool: Path) -> None:
    """The exception is on disk before anything else of the end is done, which may hang or be cut short."""
    run("train(0, 5)\nmonitor._send_rest = lambda **k: os.kill(os.getpid(), 9)\nraise OSError('x')")
    ending = recorded(spool).ending
    assert ending is not None
    assert (ending.status, ending.kind, ending.message) == (None, "OSError", "x")


@pytest.mark.parametrize("code", ["sys.exit(3)", "monitor.finish()", "monitor.finish(); os.abort()"])
def test_a_run_that_ended_by_itself(spool: Path, code: str) -> None:
    """``sys.exit`` and ``finish`` are no crash, and what comes after ``finish`` is not ours."""
    run(f"train(0, 10); {code}")
    recording = recorded(spool)
    assert recording.ending is not None
    assert recording.ending.status == "finished"
    assert [row.step for row in recording.rows()] == list(range(11))
    assert not (spool / "fly" / "rank0.fault.txt").exists()


def test_os_exit_and_a_context_manager(spool: Path) -> None:
    """Without a word there is no ending; an exception inside ``with monitor`` is one."""
    run("train(0, 10); os._exit(0)")
    assert recorded(spool).ending is None
    run("with monitor:\n    train(0, 10)\n    raise KeyError('lost')")
    ending = recorded(spool).ending
    assert ending is not None
    assert ending.kind == "KeyError"
    assert "KeyError" in ending.traceback


def test_a_resumed_run_keeps_the_crash_before_it(spool: Path) -> None:
    """Three earlier lives are kept, a fourth goes; a life that ended well makes room."""
    for life in range(5):
        run(f"train({10 * life}, {10 * life + 3}); os._exit(1)")
    steps = [
        next(row.step for row in read_file(Path(f"{recorder_of(spool)}{age}")).rows())
        for age in ("", ".1", ".2", ".3")
    ]
    assert steps == [40, 30, 20, 10]
    assert not Path(f"{recorder_of(spool)}.4").exists()
    run("train(50, 53); monitor.finish()")
    run("train(60, 63); os._exit(1)")
    assert next(row.step for row in read_file(Path(f"{recorder_of(spool)}.1")).rows()) == 40


def test_the_fault_file_moves_with_its_recorder(spool: Path) -> None:
    """The stacks of the crash before stay beside the recorder of the crash before."""
    run("train(0, 3); os.abort()")
    run("train(3, 6); monitor.finish()")
    assert "Aborted" in (spool / "fly" / "rank0.fault.txt.1").read_text()
    assert not (spool / "fly" / "rank0.fault.txt").exists()


def test_an_empty_fault_file_is_not_kept_with_a_recorder(spool: Path) -> None:
    """A process that was killed leaves one in which nothing stands; the next life takes it away."""
    run("train(0, 5); os._exit(3)")
    assert not (spool / "fly" / "rank0.fault.txt").read_bytes()
    run("train(0, 5); monitor.finish()")
    assert (spool / "fly" / "rank0.recorder.1").exists()
    assert not list((spool / "fly").glob("*.fault.txt*"))


def test_the_step_that_ended_is_known_before_its_record(spool: Path) -> None:
    """A process killed right after a step has no record of it yet; what the host knew of it is there."""
    run("train(0, 5)\nmonitor._sender.put = id\nmonitor.step(5, loss=7.5)\nos.kill(os.getpid(), 9)")
    recording = recorded(spool)
    assert recording.now is not None
    assert (recording.now.ended, recording.now.phase) == (5, BETWEEN)
    tail = recording.tail()
    assert tail is not None
    assert (tail.step, tail.scalars["loss"]) == (5, 7.5)


def test_killed_at_any_moment(spool: Path) -> None:
    """A process killed in the middle of its work, again and again: the file is always whole."""
    program = textwrap.dedent(LOOP).replace("SETTINGS", "{}").replace("time.sleep(0.002)", "time.sleep(0)")
    reached = []
    for attempt in range(8):
        child = subprocess.Popen([sys.executable, "-c", program + "\ntrain(0, 10**9)"])
        deadline = time.monotonic() + 60
        while not recorder_of(spool).exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.3 + 0.037 * attempt)
        child.kill()
        child.wait()
        recording = recorded(spool)
        rows = list(recording.rows())
        assert recording.now is not None
        assert recording.missing <= 1, "at most the record that was being written"
        assert [row.scalars["loss"] for row in rows] == [2.0 + row.step for row in rows]
        assert recording.now.data_id == f"shard-7/{recording.now.step}"
        reached.append(len(rows))
        recorder_of(spool).unlink()
    assert max(reached) > 100


def test_a_forked_child_leaves_the_recorder_alone(spool: Path) -> None:
    """A data loader's worker that steps or crashes writes nothing into its parent's recorder."""
    code = """
    train(0, 5)
    if os.fork() == 0:
        monitor.batch([1], step=99, data_id="child")
        monitor.step(99, loss=0.0)
        os._exit(1)
    os.wait()
    os._exit(0)
    """
    run(code)
    check_loop(recorded(spool), last=5)


def test_it_is_off_without_steps_and_in_mode_off(spool: Path) -> None:
    """``recorder_steps=0`` and ``mode="off"`` leave no file and no fault handler."""
    run("train(0, 3); print(__import__('faulthandler').is_enabled())", recorder_steps=0)
    assert not recorder_of(spool).exists()
    off = floatscope.watch(run="x", run_id="fly", mode="off", strict=True)
    off.batch([1], data_id=3)
    off.step(loss=1.0)
    off.finish()
    assert not recorder_of(spool).exists()


def test_it_runs_beside_a_server(server: HttpServer, spool: Path) -> None:
    """With a server the recorder is written all the same, and the batch's number is a scalar there."""
    monitor = floatscope.watch(run="s", run_id="fly", url=server.url, gpu=False, strict=True)
    for step in range(5):
        monitor.batch([1], data_id=100 + step)
        monitor.step(loss=1.0)
    assert monitor.data_id == 104
    monitor.finish()
    rows = list(recorded(spool).rows())
    assert [row.scalars["data_id"] for row in rows] == [100, 101, 102, 103, 104]
    assert [row["data_id"] for row in server.server.rows("fly")] == [100, 101, 102, 103, 104]


def test_identifiers_of_any_kind(spool: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Long text is cut at a character, huge numbers are text only, other things are refused in one line."""
    assert data_id_text("ä" * 600) == "ä".encode() * 512
    monitor = floatscope.watch(run="s", run_id="fly", mode="local", gpu=False, strict=True)
    for data_id in (2**70, "x" * 5000, [1, 2], object(), True):
        monitor.batch([1], data_id=data_id)  # type: ignore[arg-type]
        monitor.step(loss=1.0)
    monitor.finish()
    rows = list(recorded(spool).rows())
    assert [row.scalars.get("data_id") for row in rows] == [None, None, None, None, 1.0]
    assert caplog.text.count("data_id has to be") == 1


def test_a_fault_handler_of_the_user_stays_theirs(spool: Path, tmp_path: Path) -> None:
    """One that is on is left alone; one that is switched on later is not switched off."""
    was_on = faulthandler.is_enabled()
    faulthandler.disable()
    try:
        with open(tmp_path / "mine", "w") as mine:
            faulthandler.enable(mine)
            monitor = floatscope.watch(run="s", run_id="fly", mode="local", gpu=False, strict=True)
            monitor.step(loss=1.0)
            monitor.finish()
            assert faulthandler.is_enabled()
            faulthandler.disable()
            monitor = floatscope.watch(run="s", run_id="fly", mode="local", gpu=False, strict=True)
            deadline = time.monotonic() + 30
            while not faulthandler.is_enabled() and time.monotonic() < deadline:
                time.sleep(0.01)
            assert faulthandler.is_enabled(), "ours, into a file"
            faulthandler.enable(mine)
            monitor.finish()
            assert faulthandler.is_enabled(), "theirs"
            faulthandler.disable()
            monitor = floatscope.watch(run="s", run_id="fly", mode="local", gpu=False, strict=True)
            monitor.step(loss=1.0)
            monitor.finish()
            assert not faulthandler.is_enabled(), "ours is gone"
    finally:
        if was_on:
            faulthandler.enable()


def test_the_ranks_of_a_job(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank has its own file under the one run id, with its place and its own end."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, death in enumerate(("os.kill(os.getpid(), 9)", "raise MemoryError('rank 1')")):
        monkeypatch.setenv("RANK", str(rank))
        run(f"train(0, {10 + rank}); {death}", coordinates={"dp": rank})
    first, second = (read_file(spool / "fly" / f"rank{rank}.recorder") for rank in (0, 1))
    assert (first.rank, second.rank) == (0, 1)
    assert first.description["run_id"] == second.description["run_id"] == "fly"
    assert second.description["coordinates"] == {"dp": 1}
    assert first.ending is None
    assert second.ending is not None
    assert second.ending.kind == "MemoryError"
    check_loop(first, last=10)
    check_loop(second, last=11)
