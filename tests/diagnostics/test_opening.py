"""Opening inputs: packed, cut off, recoded, dangerous."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import socket
import sys
from pathlib import Path
from typing import Any, Protocol

import pytest

from floatscope_diagnostics.readers import line_blocks, unpacking
from floatscope_diagnostics.readers.opening import open_log
from floatscope_diagnostics.readers.run_log import UnreadableLog
from tests.diagnostics.read_back import read_one

TEXT = "".join(f'{{"step": {s}, "loss": {3 - s / 4096!r}}}\n' for s in range(4000)).encode()


class Pack(Protocol):
    def __call__(self, data: bytes, /) -> bytes: ...


def zstandard(data: bytes) -> bytes:
    module = pytest.importorskip("zstandard")
    packed: bytes = module.ZstdCompressor(write_checksum=True).compress(data)
    return packed


PACKS: dict[str, Pack] = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstandard}


def write(folder: Path, data: bytes, name: str = "log") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def refused(path: Path | str) -> str:
    with pytest.raises(UnreadableLog) as caught:
        read_one(path)
    return str(caught.value)


@pytest.mark.parametrize("pack", PACKS.values(), ids=PACKS)
def test_packed_logs_are_read_whatever_their_name(tmp_path: Path, pack: Pack) -> None:
    assert len(read_one(write(tmp_path, pack(TEXT))).steps) == 4000


@pytest.mark.parametrize("pack", PACKS.values(), ids=PACKS)
def test_members_one_after_the_other_are_one_log(tmp_path: Path, pack: Pack) -> None:
    lines = TEXT.splitlines(keepends=True)
    data = pack(b"".join(lines[:1500])) + pack(b"".join(lines[1500:]))
    assert len(read_one(write(tmp_path, data)).steps) == 4000


@pytest.mark.parametrize("name", ["gz", "bz2", "xz", "zst"])
def test_a_cut_archive_keeps_what_came_before_the_cut(tmp_path: Path, name: str) -> None:
    rows = "".join(f'{{"step": {s}, "loss": {hash((s, 1)) % 9999991}.5}}\n' for s in range(80_000)).encode()
    data = PACKS[name](rows)
    run = read_one(write(tmp_path, data[: len(data) * 2 // 3]))
    assert 0 < len(run.steps) < 80_000
    assert run.steps == list(range(len(run.steps)))
    assert any("the end of the log is missing" in n for n in run.notes)


@pytest.mark.parametrize("name", ["gz", "bz2", "xz", "zst"])
def test_a_damaged_archive_is_refused(tmp_path: Path, name: str) -> None:
    data = PACKS[name](TEXT)
    for at in range(20, len(data) - 30, len(data) // 7):
        bad = bytearray(data)
        bad[at] ^= 0xFF
        assert refused(write(tmp_path, bytes(bad)))


@pytest.mark.parametrize("name", ["gz", "bz2", "xz", "zst"])
def test_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(unpacking, "RATIO_FROM_BYTES", 1 << 20)
    bomb = PACKS[name]((b'{"step": 1, "loss": 2.0}' + b" " * 5000 + b"\n") * 4000)
    assert "not a training log" in refused(write(tmp_path, bomb))


def test_bytes_behind_an_archive_are_noted(tmp_path: Path) -> None:
    padded = read_one(write(tmp_path, gzip.compress(TEXT) + b"\0" * 512))
    assert padded.notes == ()
    run = read_one(write(tmp_path, gzip.compress(TEXT) + b"rubbish"))
    assert len(run.steps) == 4000
    assert any("after the end" in n for n in run.notes)


def test_an_archive_in_an_archive_is_refused(tmp_path: Path) -> None:
    assert "packed twice (gzip, then xz)" in refused(write(tmp_path, gzip.compress(lzma.compress(TEXT))))


def test_zstandard_without_its_package_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, zstandard(TEXT))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert "pip install zstandard" in refused(path)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_utf_16_and_byte_order_marks(tmp_path: Path, encoding: str) -> None:
    run = read_one(write(tmp_path, TEXT.decode().encode(encoding)))
    assert (len(run.steps), run.skipped) == (4000, 0)


def test_invalid_utf_8_and_nul_bytes_cost_only_their_lines(tmp_path: Path) -> None:
    data = TEXT + b'\xff\xfe{"step": 1}\n' + b"\0" * 300 + b'{"step": 4000, "loss": 1.0}\n'
    run = read_one(write(tmp_path, data))
    assert run.steps[-1] == 4000
    assert run.skipped == 1


def test_a_short_log_before_a_tail_of_nul_bytes_is_read(tmp_path: Path) -> None:
    run = read_one(write(tmp_path, TEXT[:100].rpartition(b"\n")[0] + b"\n" + b"\0" * 40_000))
    assert run.steps == [0, 1, 2]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"PK\x03\x04" + b"x" * 99, "zip archive"),
        (b"x" * 257 + b"ustar\x0000" + b"y" * 300, "tar archive"),
        (gzip.compress(b"x" * 257 + b"ustar\x0000" + b"y" * 300), "tar archive"),
        (b"\x89HDF\r\n\x1a\n" + b"x" * 99, "HDF5"),
        (b"PAR1" + b"x" * 99, "parquet"),
        (b"\x00" * 9, "NUL"),
        (os.urandom(5000) + b"\x01" * 999, "binary"),
        (b"", "is empty"),
    ],
)
def test_what_is_no_log_is_named_with_advice(tmp_path: Path, data: bytes, words: str) -> None:
    assert words in refused(write(tmp_path, data))


def test_links_to_devices_pipes_and_sockets_are_refused(tmp_path: Path) -> None:
    (tmp_path / "zero").symlink_to("/dev/zero")
    assert "device" in refused(tmp_path / "zero")
    os.mkfifo(tmp_path / "pipe")
    assert "pipe" in refused(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert "cannot be opened" in refused(tmp_path / "loop")
    (tmp_path / "gone").symlink_to(tmp_path / "nothing")
    assert "no such file" in refused(tmp_path / "gone")
    here = Path.cwd()
    os.chdir(tmp_path)  # the name of a socket is limited to 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("sock")
            assert "socket" in refused("sock")
    finally:
        os.chdir(here)


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc")
def test_files_of_proc_are_refused_without_hanging() -> None:
    for name in ("status", "mem", "environ", "pagemap"):
        assert refused(f"/proc/self/{name}")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_told(tmp_path: Path) -> None:
    path = write(tmp_path, TEXT)
    path.chmod(0)
    assert "permission" in refused(path).lower()


def test_a_path_that_is_none(tmp_path: Path) -> None:
    assert "cannot be opened" in refused("a\x00b")
    assert "cannot be opened" in refused("x" * 5000)


def test_a_file_that_shrinks_while_it_is_read_ends_there(tmp_path: Path) -> None:
    path = write(tmp_path, TEXT * 50)
    with open_log(str(path)) as opened:
        lines = opened.text_lines()
        next(lines)
        os.truncate(path, 100)
        assert sum(1 for _ in lines) < 4000 * 50


def test_text_lines_come_between_carriage_returns_and_are_cut(tmp_path: Path) -> None:
    long = b"y" * 100_000
    data = b"\xef\xbb\xbfa\r\nb1\rb2\rb3\n\n" + long + b"\nc\n" + b"z" * 700_000 + b"\rd\ne"
    with open_log(str(write(tmp_path, data))) as opened:
        lines = list(opened.text_lines())
    shown = [(n, x[:3], len(x)) for n, x in lines]
    assert shown == [
        (1, b"a", 1), (2, b"b1", 2), (2, b"b2", 2), (2, b"b3", 2), (4, b"yyy", 65_536), (5, b"c", 1),
        (6, b"zzz", 65_536), (6, b"d", 1), (7, b"e", 1),
    ]  # fmt: skip
    assert opened.notes == ["lines longer than 64 KiB were cut: 2"]


def test_an_endless_line_of_text_takes_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.write(b"step 1 loss 2.0\n" + b"x" * 70_000)
        file.truncate(1 << 29)
    with open_log(str(path)) as opened:
        assert sum(len(x) for _, x in opened.text_lines()) < 100_000


def test_the_middle_of_a_long_file_is_looked_at(tmp_path: Path) -> None:
    data = b"# environment\n" * 50_000 + TEXT + b"# end\n" * 50_000
    with open_log(str(write(tmp_path, data))) as opened:
        assert b"loss" in opened.later or b"# e" in opened.later
        assert not opened.later.startswith(b'oss"')
    with open_log(str(write(tmp_path, gzip.compress(data)))) as opened:
        assert opened.later == b""


def test_standard_input_of_any_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(io.RawIOBase):
        """A pipe that gives a few bytes at a time."""

        def __init__(self) -> None:
            self.left = gzip.compress(TEXT)

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            part, self.left = self.left[:100], self.left[100:]
            buffer[: len(part)] = part
            return len(part)

    class Stdin:
        buffer = io.BufferedReader(Slow())

    monkeypatch.setattr(sys, "stdin", Stdin())
    assert len(read_one("-").steps) == 4000


def test_on_open_gets_the_raw_file(tmp_path: Path) -> None:
    seen = []
    with open_log(str(write(tmp_path, gzip.compress(TEXT))), on_open=lambda f: seen.append(f.fileno())):
        pass
    assert len(seen) == 1


def test_line_beyond_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_blocks, "MAX_LINE_BYTES", 1 << 20)
    assert "line 4,001 is longer" in refused(write(tmp_path, TEXT + b'{"step": 1, "x": "' + b"x" * (1 << 24)))
