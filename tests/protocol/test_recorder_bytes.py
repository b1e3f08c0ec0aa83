"""A recorder is read by ordinary reads: what is there is what bytes in memory would say, and no file kills
the reader."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope import recorder_bytes
from floatscope.recorder_bytes import FileBytes


def opened(path: Path) -> FileBytes:
    with open(path, "rb") as file:
        return FileBytes(file.fileno())


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_it_reads_and_finds_as_bytes_do(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Slices and places of a mark, across the edges of the window that is held, also in a file with holes."""
    before, recorder_bytes.WINDOW_BYTES = recorder_bytes.WINDOW_BYTES, data.draw(st.sampled_from([4, 7, 64]))
    try:
        content = bytearray(data.draw(st.integers(0, 300)))
        for at in data.draw(st.lists(st.integers(0, 300), max_size=12)):
            content[at : at + 4] = b"MARK"[: max(len(content) - at, 0)]
        path = tmp_path_factory.mktemp("bytes") / "file"
        path.write_bytes(content)
        view = opened(path)
        assert len(view) == len(content)
        for _ in range(10):
            start, end = data.draw(st.integers(0, 320)), data.draw(st.integers(0, 320))
            assert view[start:end] == bytes(content[start:end])
            assert view.find(b"MARK", start, end) == bytes(content).find(b"MARK", start, end)
    finally:
        recorder_bytes.WINDOW_BYTES = before


def test_holes_are_not_walked_through(tmp_path: Path) -> None:
    """A mark behind a terabyte of nothing is found without reading that: a forged file keeps nobody busy."""
    path = tmp_path / "holes"
    with open(path, "wb") as file:
        file.truncate(2**40)
        os.pwrite(file.fileno(), b"MARK", 2**39 + 5)
    view = opened(path)
    assert view.find(b"MARK", 10, 2**40) == 2**39 + 5
    assert view.find(b"MARK", 2**39 + 6, 2**40) == -1


def test_a_file_that_is_cut_off_while_it_is_read_does_not_kill_the_reader(tmp_path: Path) -> None:
    """What mapped memory answers with SIGBUS, as it does for a hole on a full tmpfs, reads as nothing."""
    code = """
    import os, sys
    from tests.protocol.test_ring import Path, read_file, row_of, write
    path = Path(sys.argv[1])
    write(path, [row_of(step, width=40) for step in range(400)], size=2**22)
    recording = read_file(path)
    os.truncate(path, 4096)
    rows = list(recording.rows())
    print("alive", len(rows) < 400)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "r")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert (done.returncode, done.stdout.split()) == (0, ["alive", "True"]), done.stderr


def test_a_part_that_cannot_be_read_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a part reads as zeros, and what the disk said is kept; without a beginning it raises."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * (2 * recorder_bytes.WINDOW_BYTES))
    view = opened(path)

    def refuse(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("os.pread", refuse)
    assert view[:4] == b"xxxx"
    assert view[len(view) - 4 :] == b"\0\0\0\0"
    assert view.failure == "Input/output error"
    with pytest.raises(OSError, match="Input/output"):
        opened(path)
