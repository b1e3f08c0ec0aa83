"""Following a log: what is new is said once, rotation and standard input included, and it costs little."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from floatscope_diagnostics.diagnose import Diagnosed
from floatscope_diagnostics.gather import Reading, Unread
from floatscope_diagnostics.watch import Ends, watch
from tests.diagnostics.reports.logs import broken, healthy
from tests.diagnostics.reports.test_terminal import Quiet

COMMAND = [sys.executable, "-m", "floatscope_diagnostics.cli"]


def text(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


class Following:
    """``watch`` in a thread, with what it said."""

    def __init__(self, *paths: str, idle_s: float | None = 2.5) -> None:
        self.told, self.status = Quiet(), Quiet()
        self.result: tuple[list[Diagnosed], list[Unread]] = ([], [])
        self._thread = threading.Thread(target=self._run, args=(list(paths), Ends(idle_s=idle_s)))
        self._thread.start()

    def _run(self, paths: list[str], ends: Ends) -> None:
        self.result = watch(
            paths, reading=Reading(), baseline=None, ends=ends, told=self.told, status=self.status
        )

    def until(self, condition: Callable[[str], bool]) -> None:
        end = time.monotonic() + 30
        while not condition(self.told.getvalue()):
            assert time.monotonic() < end, self.told.getvalue()
            time.sleep(0.05)

    def end(self) -> list[str]:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.told.getvalue().splitlines()


def test_a_log_that_does_not_exist_yet_is_waited_for_and_a_finding_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    following = Following(str(path))
    rows = broken(80)
    path.write_text(text(rows[:30]))
    time.sleep(1.5)
    with path.open("a") as log:
        log.write(text(rows[30:60]))
        log.flush()
        following.until(lambda said: "step 41" in said)
        log.write(text(rows[60:]))
    lines = following.end()
    assert [line for line in lines if "step 41" in line] == lines
    assert len(lines) == 1
    assert "▲ critical  step 41:" in lines[0]
    assert following.result[0][0].verdict.source.last_step == 80
    assert following.status.getvalue() == ""  # the quiet line is for terminals


def test_a_rotated_log_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(text(broken(80)))
    following = Following(str(path))
    following.until(lambda said: "step 41" in said)
    path.rename(tmp_path / "run.jsonl.1")
    path.write_text(text(healthy(20)))
    lines = following.end()
    assert "was rotated or truncated" in lines[1]
    assert len(lines) == 2
    assert following.result[0][0].verdict.status == "healthy"


def test_a_log_that_is_gone_counts_until_it_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(text(broken(80)))
    for again in (False, True):
        following = Following(str(path))
        following.until(lambda said: "step 41" in said)
        path.unlink()
        following.until(lambda said: "is gone: what it held counts until it is there again" in said)
        assert len(following.told.getvalue().splitlines()) == 2
        if again:
            path.write_text(text(healthy(20)))
        lines = following.end()
        assert following.result[0][0].verdict.status == ("healthy" if again else "critical")
        assert ["was rotated or truncated" in line for line in lines[2:]] == [True] * again
        path.write_text(text(broken(80)))


def test_a_new_file_in_a_folder_joins_in(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(text(healthy(30)))
    following = Following(str(tmp_path))
    time.sleep(0.7)
    (tmp_path / "b.jsonl").write_text(text(broken(60)))
    lines = following.end()
    assert len(lines) == 1
    assert "b.jsonl: step 41" in lines[0]
    assert len(following.result[0]) == 2


def test_a_log_that_never_comes_is_unread(tmp_path: Path) -> None:
    following = Following(str(tmp_path / "never.jsonl"), idle_s=0.3)
    assert following.end() == []
    assert "no such file" in following.result[1][0].error


@pytest.fixture
def piped(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*COMMAND, "-", "--watch"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


def test_standard_input_is_followed_to_its_end(piped: subprocess.Popen[str]) -> None:
    assert piped.stdin is not None
    assert piped.stdout is not None
    piped.stdin.write(text(broken(50)))
    piped.stdin.flush()
    assert "▲ critical  step 41" in piped.stdout.readline()
    piped.stdin.write(text(broken(60)[50:]))
    out, err = piped.communicate(timeout=30)
    assert "-   60 steps (1 to 60)" in out
    assert (piped.returncode, err) == (1, "")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_with_the_report_and_the_exit_code(how: int, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(text(broken(60)))
    process = subprocess.Popen([*COMMAND, str(path), "--watch"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "step 41" in process.stdout.readline()
    process.send_signal(how)
    out, _ = process.communicate(timeout=30)
    assert "Exit code 1." in out
    assert process.returncode == 1


def test_json_at_the_end_is_the_only_thing_on_standard_output(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(text(broken(60)))
    command = [*COMMAND, str(path), "--watch", "--watch-for", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert json.loads(done.stdout)["status"] == "critical"
    assert "step 41" in done.stderr
    assert done.returncode == 1


def test_watching_a_log_that_grows_all_the_time_costs_a_twentieth_of_a_core(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(text(healthy(5_000)))
    start = [*COMMAND, str(path)]
    once = cpu_s(start)
    with subprocess.Popen([*start, "--watch", "--watch-for", "12"], stdout=subprocess.DEVNULL) as process:
        step = 5_000
        while process.poll() is None:
            with path.open("a") as log:
                log.write(text([{"step": step + k, "loss": 2.0} for k in range(1, 11)]))
            step += 10
            time.sleep(0.1)
    watched = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - once[1]
    # a first and a last reading, which any diagnosis costs, and at most 5 % of the 12 s; half as much again
    # for the noise of a busy machine
    assert watched - 2 * once[0] < 1.5 * 0.05 * 12


def cpu_s(command: list[str]) -> tuple[float, float]:
    """CPU seconds of a command, and of all children so far."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subprocess.run(command, stdout=subprocess.DEVNULL, timeout=60, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    return after - before, after


@pytest.mark.parametrize("extra", [["--watch-for", "1"], ["--watch-idle", "1"]])
def test_ends_need_watch(extra: list[str], tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(text(healthy()))
    done = subprocess.run(
        [*COMMAND, str(path), *extra], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "need --watch" in done.stderr
    assert os.listdir(tmp_path) == ["run.jsonl"]
