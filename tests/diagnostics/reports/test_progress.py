"""The progress line: on a terminal and for large inputs only, and it counts to the end."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from floatscope_diagnostics.gather import Reading
from floatscope_diagnostics.reports import progress as module
from floatscope_diagnostics.reports.progress import ProgressLine, progress
from tests.diagnostics.reports.test_terminal import Terminal


def test_no_terminal_no_thread_and_no_hooks(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 5_000_000)
    before = threading.active_count()
    with progress([str(path)], Reading(), stream=io.StringIO()) as reading:
        assert reading == Reading()
        assert threading.active_count() == before


def test_a_small_log_has_none(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 1000)
    with progress([str(path)], Reading(), stream=Terminal()) as reading:
        assert reading == Reading()


def test_the_line_says_how_far_it_is(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_bytes(b"x" * 6_000_000)
    second.write_bytes(b"x" * 4_000_000)
    line = ProgressLine(io.StringIO(), 10_000_000)
    with first.open("rb", buffering=0) as a, second.open("rb", buffering=0) as b:
        line.opened(a)
        a.read(3_000_000)
        assert line.text().startswith("reading: [#######                 ] 3.0 MB of 10.0 MB, ")
        line.opened(b)
        line.rows_read(1234)
        b.read(1_000_000)
        assert "7.0 MB of 10.0 MB, 1,234 rows, 0 s left" in line.text()
    assert "6.0 MB of 10.0 MB" in line.text()  # the file is closed again


def test_standard_input_has_no_total() -> None:
    line = ProgressLine(io.StringIO(), None)
    assert line.text() == "reading: 0 B"


def test_the_line_is_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_AFTER_S", 0.01)
    monkeypatch.setattr(module, "FROM_BYTES", 10)
    path = tmp_path / "log"
    path.write_bytes(b"x" * 1000)
    stream = Terminal()
    with progress([str(path)], Reading(), stream=stream):
        time.sleep(0.2)
    out = stream.getvalue()
    assert "reading: [" in out
    assert out.endswith("\r")
    assert out.rsplit("\r", 2)[1].strip() == ""


def test_a_real_terminal_sees_it_on_a_large_log(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with path.open("w") as log:
        for step in range(150_000):
            log.write(f'{{"step": {step}, "loss": {2 + step % 7 / 100}, "grad_norm": 1.0, "lr": 0.001}}\n')
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "floatscope_diagnostics.cli", str(path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        seen = b""
        try:
            while data := os.read(ours, 4096):
                seen += data
        except OSError:  # how Linux says that the other side is gone
            pass
        assert process.wait(60) == 0
    os.close(ours)
    assert b"reading: [" in seen
    assert b" MB of " in seen
