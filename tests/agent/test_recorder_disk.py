"""The flight recorder on disks that are full, read-only, remote or small. Real files and processes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import floatscope
from floatscope.recorder_disk import kind_of
from floatscope.recorder_reading import read_file


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """Where the agent keeps its files."""
    return tmp_path / "spool"


def test_a_read_only_or_missing_disk_costs_only_the_recorder(
    spool: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the file cannot be made, one line says so and the run goes on."""
    spool.mkdir()
    (spool / "fly").write_text("a file where the folder should be")
    log = spool / "log.jsonl"
    monitor = floatscope.watch(run="s", run_id="fly", mode="local", gpu=False, strict=True, log_path=log)
    for _ in range(5):
        monitor.step(loss=1.0)
    monitor.finish()
    assert caplog.text.count("you lose the flight recorder") == 1
    assert len(log.read_text().splitlines()) == 6


def test_a_disk_that_fills_up_is_gone_round_in(tmp_path: Path) -> None:
    """When no byte can be added the rings turn in the room they have, and the newest steps stay."""
    code = """
    import resource, signal, sys
    from tests.protocol.test_ring import Path, read_file, row_of, write, pack
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    path = Path(sys.argv[1])
    file = write(path, [row_of(step, width=40) for step in range(30)], size=2**22, steps=10_000)
    reached = path.stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (reached, reached))
    for step in range(30, 200):
        assert file.append(step, pack(row_of(step, width=40), file.number_of))
    rows = list(read_file(path).rows())
    detailed = [row.step for row in rows if row.blocks]
    print([row.step for row in rows] == list(range(200)), detailed == list(range(200 - len(detailed), 200)),
          len(detailed) >= 25)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "r")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.split() == ["True", "True", "True"], done.stderr


class FillsUp:
    """A disk on which only pages that were allocated or written before it was full can be written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        self._pages: set[tuple[int, int]] = set()
        self._write, self._allocate = os.pwrite, os.posix_fallocate
        monkeypatch.setattr("os.pwrite", self.pwrite)
        monkeypatch.setattr("os.posix_fallocate", self.posix_fallocate)

    def _take(self, fd: int, at: int, size: int) -> None:
        inode = os.fstat(fd).st_ino
        pages = {(inode, page) for page in range(at // 4096, (at + size - 1) // 4096 + 1)}
        if self.is_full and not pages <= self._pages:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._pages |= pages

    def pwrite(self, fd: int, data: Any, at: int) -> int:
        self._take(fd, at, len(data))
        return self._write(fd, data, at)

    def posix_fallocate(self, fd: int, at: int, size: int) -> None:
        self._take(fd, at, size)
        self._allocate(fd, at, size)


@pytest.mark.parametrize("full_from", [0, 20])
@pytest.mark.parametrize("status", ["finished", "crashed"])
def test_on_a_disk_that_fills_up_the_end_of_the_run_is_still_recorded(
    spool: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    full_from: int,
    status: str,
) -> None:
    """Its room is taken at the start: a run that finished is not told as one that was killed."""
    disk = FillsUp(monkeypatch)
    monitor = floatscope.watch(run="s", run_id="fly", mode="local", gpu=False, strict=True, diagnose=False)
    path = spool / "fly" / "rank0.recorder"
    while not path.exists():
        time.sleep(0.01)
    for step in range(200):
        if step == full_from:
            if step:
                while not list(read_file(path).rows()):
                    time.sleep(0.05)
            disk.is_full = True
        monitor.batch([1], data_id=f"b{step}")
        monitor.log({f"scalar_{step % 7}": 1.0})
        monitor.step(loss=float(step))
    monitor.finish(status, "x" * 3000)
    recording = read_file(path)
    assert recording.ending is not None
    assert (recording.ending.status, recording.ending.reason) == (status, "x" * 3000)
    assert recording.now is not None
    assert (recording.now.ended, recording.now.data_id) == (199, "b199")
    assert recording.description["run_id"] == "fly"
    assert caplog.text.count("the disk is full") == 1
    assert "you lose the flight recorder" not in caplog.text


MOUNTS = """\
/dev/vda / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
tmpfs /home/me/fast\\040disk tmpfs rw 0 0
gcs /data fuse.gcsfuse rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/x", "ext4"),
        ("/home", "nfs4"),
        ("/home/me/runs", "nfs4"),
        ("/homes", "ext4"),
        ("/home/me/fast disk/x", "tmpfs"),
        ("/data/x", "fuse.gcsfuse"),
    ],
)
def test_the_file_system_of_a_path(path: str, kind: str) -> None:
    """The innermost mount counts, also with blanks in its name."""
    assert kind_of(path, MOUNTS) == kind


def test_on_a_remote_disk_the_training_thread_writes_nothing(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There the sender's thread writes all of it: steps, the step under way, and the exception."""
    monkeypatch.setattr("floatscope.recorder.is_remote", lambda _: True)
    writers = set()
    write = os.pwrite

    def watched(*args: Any) -> int:
        writers.add(threading.current_thread())
        return write(*args)

    monkeypatch.setattr("os.pwrite", watched)
    monitor = floatscope.watch(run="s", run_id="fly", mode="local", gpu=False, strict=True, diagnose=False)
    for step in range(5):
        monitor.batch([1], data_id=f"b{step}")
        monitor.step(loss=1.0)
    with pytest.raises(KeyError), monitor:
        raise KeyError("x")
    assert threading.current_thread() not in writers
    recording = read_file(spool / "fly" / "rank0.recorder")
    assert recording.now is not None
    assert (recording.now.ended, recording.now.data_id) == (4, "b4")
    assert recording.ending is not None
    assert (recording.ending.kind, recording.ending.status) == ("KeyError", "crashed")
    assert [row.step for row in recording.rows()] == [0, 1, 2, 3, 4]


def test_it_takes_little_disk(spool: Path) -> None:
    """A small run leaves a file whose blocks are few, whatever the size it may grow to."""
    monitor = floatscope.watch(run="s", run_id="fly", mode="local", gpu=False, strict=True, diagnose=False)
    for _ in range(50):
        monitor.step(loss=1.0)
    monitor.finish()
    assert os.stat(spool / "fly" / "rank0.recorder").st_blocks * 512 < 2**18
