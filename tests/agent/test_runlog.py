"""The floatscope log of a run without a server."""

from __future__ import annotations

import json
import math
import os
import resource
import stat
from pathlib import Path
from typing import Any

import pytest

import floatscope
from floatscope.guard import Guard
from floatscope.protocol.runinfo import RunInfo
from floatscope.rows import Row
from floatscope.runlog import HEAD_SPARE_BYTES, RunLog
from floatscope_diagnostics.cli import main as diagnose
from tests.agent.conftest import read_log


def watch(**settings: Any) -> floatscope.Monitor:
    return floatscope.watch(run="local run", mode="local", gpu=False, strict=True, **settings)


def test_without_a_url_a_run_is_written_below_the_spool_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monitor = floatscope.watch(run="local run", gpu=False, strict=True, config={"batch": 8})
    for loss in (1.0, math.nan, -math.inf):
        monitor.step(loss=loss)
    monitor.finish("failed", "it said no")
    path = tmp_path / "spool" / monitor.run_id / "rank0.jsonl"
    run, rows = read_log(path)
    assert [row["loss"] for row in rows] == [1.0, "NaN", "-Infinity"]
    assert (run["name"], run["status"], run["reason"]) == ("local run", "failed", "it said no")
    assert run["config"]["batch"] == 8
    assert f"floatscope diagnose {path}" in capsys.readouterr().err


def test_a_path_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "deep" / "er" / "run.jsonl"
    with watch(log_path=path, rank=3) as monitor:
        monitor.step(loss=1.0)
    run, rows = read_log(path)
    assert rows[0]["rank"] == 3
    assert "diagnose" not in capsys.readouterr().err, "one rank's farewell is enough"
    assert run["run_id"] == monitor.run_id


def test_the_same_run_is_continued_another_one_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    for run_id, loss in (("a", 1.0), ("a", 2.0), ("b", 3.0)):
        with watch(log_path=path, run_id=run_id) as monitor:
            monitor.step(loss=loss)
        _, rows = read_log(path)
        assert [row["loss"] for row in rows] == ([3.0] if run_id == "b" else [1.0, 2.0][: len(rows)])
        assert len(rows) == (2 if loss == 2.0 else 1)
        assert ("resumed" in rows[-1]) == (loss == 2.0)


def test_a_line_cut_off_by_a_kill_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with watch(log_path=path, run_id="a") as monitor:
        monitor.step(loss=1.0)
    path.write_bytes(path.read_bytes() + b'{"step": 1, "lo')
    with watch(log_path=path, run_id="a") as monitor:
        monitor.step(1, loss=2.0)
    _, rows = read_log(path)
    assert [row["loss"] for row in rows] == [1.0, 2.0]


def test_the_first_line_grows_without_losing_rows(tmp_path: Path) -> None:
    info = RunInfo(name="x")
    log = RunLog(tmp_path / "run.jsonl", run_id="x", rank=0, info=lambda: info, guard=Guard(strict=True))
    for step in range(20):
        log.accept([Row(step, 1.0, {"loss": 1.0})])
        log.work()
        tensors = {f"layers.{i}.fc/input": {"format": "e4m3"} for i in range(40 * step)}
        info = RunInfo(name="x", tensors=tensors)
    log.finish("finished", None)
    log.work()
    run, rows = read_log(tmp_path / "run.jsonl")
    assert len(run["tensors"]) == 40 * 19
    assert [row["step"] for row in rows] == list(range(20))
    assert [p.name for p in tmp_path.iterdir()] == ["run.jsonl"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    monitor = floatscope.watch(run="x", mode="local", gpu=False, spool_dir=tmp_path)
    monitor.step(loss=1.0)
    monitor.finish()


@pytest.mark.parametrize("obstacle", ["file as directory", "directory as file", "device", "fifo"])
def test_a_place_that_takes_no_log_is_reported_once_and_left_alone(
    tmp_path: Path, obstacle: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.jsonl"
    if obstacle == "file as directory":
        path.write_text("in the way")
        path = path / "run.jsonl"
    elif obstacle == "directory as file":
        path.mkdir()
    elif obstacle == "device":
        path = Path("/dev/null")
    else:
        os.mkfifo(path)
    with watch(log_path=path) as monitor:
        for _ in range(5):
            monitor.step(loss=1.0)
    said = [r.getMessage() for r in caplog.records if "cannot write" in r.getMessage()]
    assert len(said) == 1
    assert str(path) in said[0]
    assert "diagnose" not in capsys.readouterr().err
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "run.jsonl"
    info = RunInfo(name="x")
    log = RunLog(path, run_id="x", rank=0, info=lambda: info, guard=Guard())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (HEAD_SPARE_BYTES + 2000, hard))  # as a full disk: EFBIG
    try:
        for step in range(200):
            log.accept([Row(step, 1.0, {"loss": 1.0})])
            log.work()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    log.accept([Row(200, 1.0, {"loss": 2.0})])  # room again
    log.finish("finished", None)
    log.work()
    run, rows = read_log(path)
    assert 5 < len(rows) < 100
    assert rows[-1]["loss"] == 2.0
    assert log.lost_rows == 201 - len(rows)
    assert run["status"] == "finished"
    assert sum("cannot write" in r.getMessage() for r in caplog.records) == 1


def test_a_log_that_lacks_rows_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a disk that stays full, from the first row that had no room on, and in later lives of the run."""
    path = tmp_path / "run.jsonl"
    info = RunInfo(name="x")

    def life(steps: range, *, room: int) -> RunLog:
        log = RunLog(path, run_id="x", rank=0, info=lambda: info, guard=Guard())
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
        try:
            for step in steps:
                log.accept([Row(step, 1.0, {"loss": 1.0})])
                log.work()
            noted = read_log(path)[0].get("lost_steps", 0)
            assert log.lost_rows / 2 <= noted <= log.lost_rows + lost_before, "a process may be killed now"
            log.finish("finished", None)
            log.work()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        return log

    lost_before = 0
    first = life(range(200), room=HEAD_SPARE_BYTES + 2000)
    run, rows = read_log(path)
    assert first.lost_rows == 200 - len(rows) > 100
    assert (run["status"], run["lost_steps"]) == ("finished", first.lost_rows)
    lost_before = first.lost_rows
    second = life(range(200, 230), room=path.stat().st_size + 500)
    run, rows = read_log(path)
    assert second.lost_rows > 10
    assert run["lost_steps"] == lost_before + second.lost_rows == 230 - len(rows)
    assert diagnose([str(path)]) == 0
    assert f"steps are missing that could not be written: {run['lost_steps']:,}" in capsys.readouterr().out


def test_the_last_line_says_what_the_log_it_names_lacks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The diagnosis of the run has seen every step; its log has not."""

    def full(*_: Any) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(RunLog, "_append", full)
    with watch() as monitor:
        for _ in range(5):
            monitor.step(loss=1.0)
    said = capsys.readouterr().err
    assert "the whole report: floatscope diagnose" in said
    assert said.endswith("floatscope: 5 steps are missing in that log: they could not be written\n")


def test_a_log_full_of_nonsense_is_overwritten(tmp_path: Path) -> None:
    for number, content in enumerate(
        (b"", b"\xff\xfe\n", b"[]\n", b'{"run": 3}\n', b'{"run": {"run_id": "a"}}')
    ):
        path = tmp_path / f"{number}.jsonl"
        path.write_bytes(content)
        with watch(log_path=path, run_id="a") as monitor:
            monitor.step(loss=1.0)
        assert len(read_log(path)[1]) == 1


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    link, target = tmp_path / "link.jsonl", tmp_path / "target.jsonl"
    target.touch()
    link.symlink_to(target)
    with watch(log_path=link) as monitor:
        monitor.step(loss=1.0)
    assert link.is_symlink()
    assert json.loads(target.read_text().splitlines()[1])["loss"] == 1.0
