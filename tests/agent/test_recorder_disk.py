"""The flight recorder on disks that are full, read-only, remote or small. Real files and processes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
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
