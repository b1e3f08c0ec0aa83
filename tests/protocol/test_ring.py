"""The flight recorder's file: what is read is what was written, whatever happens to the file."""

from __future__ import annotations

import itertools
import math
import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from floatscope.protocol.ring import (
    ENDING,
    MAGIC,
    NOW,
    PAGE,
    RUN,
    SCALARS,
    Region,
    RingError,
    layout_of,
    pack_header,
    scan,
    seal,
    unpack_header,
)
from floatscope.recorder_file import RecorderFile
from floatscope.recorder_notes import IN_STEP, pack_now, pack_scalars
from floatscope.recorder_reading import Recording, read, read_file
from floatscope.recorder_rows import pack
from floatscope.rows import Block, Histograms, Row

SMALL = 2**16
NAMES = tuple(f"layers.{k}/input" for k in range(40))
COUNTER = itertools.count()


def row_of(step: int, *, width: int = 8, hist: bool = False) -> Row:
    """A row whose every value says which step it is of."""
    names = NAMES[:width]
    amax = np.full(width, float(step), np.float32)
    mask = np.arange(width) % 3 != step % 3
    blocks = [Block(names, {"amax": amax, "scale": amax + 0.5}, {"scale": mask})] if width else []
    counts = [Histograms(names, np.full((width, 64), step, np.uint32))] if hist else []
    return Row(step, 1e9 + step, {"loss": step + 0.25, "lr": math.nan}, blocks, [], counts)


def is_whole(row: Row) -> bool:
    """Whether nothing in the row is of another step, or was never written."""
    ok = row.time == 1e9 + row.step and set(row.scalars) <= {"loss", "lr"}
    ok &= row.scalars.get("loss", row.step + 0.25) == row.step + 0.25
    for block in row.blocks:
        ok &= block.names == NAMES[: len(block.names)]
        for name, values in block.stats.items():
            ok &= bool((values == np.float32(row.step + (0.5 if name == "scale" else 0))).all())
    return ok and all(bool((part.counts == row.step).all()) for part in row.histograms)


def write(path: Path, rows: Sequence[Row], *, size: int = SMALL, steps: int = 1000) -> RecorderFile:
    """A recorder as a living process has it: not closed."""
    file = RecorderFile(path, size=size, steps=steps, rank=3, created=1e9)
    file.slot(RUN, b'{"run":{"name":"r"},"run_id":"r-1"}')
    for number, row in enumerate(rows):
        packed = pack(row, file.number_of)
        assert packed.left_out == 0
        file.append(number, packed)
        file.now(now_of(row.step))
    return file


def now_of(step: int) -> bytes:
    scalars = pack_scalars({"loss": step + 0.25})
    return pack_now(
        step,
        step,
        time=2e9 + step,
        ended_time=1e9 + step,
        phase=IN_STEP,
        data_id=b"b%d" % step,
        scalars=scalars,
    )


def steps_of(recording: Recording) -> list[int]:
    return [row.step for row in recording.rows()]


def test_what_was_written_is_read(tmp_path: Path) -> None:
    """Scalars with NaN, statistics with masks, histograms, names, slots and rank come back exactly."""
    rows = [row_of(step, width=40, hist=step == 2) for step in range(5)]
    write(tmp_path / "r", rows)
    recording = read_file(tmp_path / "r")
    back = list(recording.rows())
    assert recording.rank == 3
    assert recording.description["run_id"] == "r-1"
    assert recording.now is not None
    assert (recording.now.step, recording.now.data_id, recording.now.scalars) == (4, "b4", {"loss": 4.25})
    assert (recording.missing, recording.lost, recording.notes) == (0, 0, [])
    for old, new in zip(rows, back, strict=True):
        assert is_whole(new)
        assert math.isnan(new.scalars["lr"])
        assert (new.step, new.time) == (old.step, old.time)
        assert new.blocks[0].names == NAMES
        assert (new.blocks[0].present["scale"] == old.blocks[0].present["scale"]).all()
        assert len(new.histograms) == len(old.histograms)


def test_the_oldest_detail_goes_first_and_scalars_stay(tmp_path: Path) -> None:
    """With too little room the scalars of all steps stay, and the statistics of the newest of them."""
    write(tmp_path / "r", [row_of(step, width=40) for step in range(150)], steps=100)
    back = list(read_file(tmp_path / "r").rows())
    assert [row.step for row in back] == list(range(50, 150))
    detailed = [row.step for row in back if row.blocks]
    assert detailed == list(range(150 - len(detailed), 150))
    assert 10 < len(detailed) < 100
    assert all(is_whole(row) for row in back)


def test_statistics_that_can_never_fit_cost_only_themselves(tmp_path: Path) -> None:
    """A step larger than the ring is kept with its scalars, and the writer is told."""
    file = RecorderFile(tmp_path / "r", size=SMALL, steps=10, rank=0, created=0.0)
    names = tuple(f"t{k}" for k in range(10_000))
    row = Row(0, 1.0, {"loss": 1.0}, [Block(names, {"amax": np.ones(10_000, np.float32)})])
    packed = pack(row, lambda _: 0)
    assert file.append(0, packed) is False
    assert file.number_of(tuple(os.urandom(30).hex() for _ in range(2000))) is None, "names that have no room"
    assert read_file(tmp_path / "r").count == 1


def test_names_that_change_at_every_step(tmp_path: Path) -> None:
    """When the lists of names outgrow their room, the newest steps are whole and old ones lose only names."""
    file = RecorderFile(tmp_path / "r", size=SMALL, steps=1000, rank=0, created=0.0)
    rows = []
    for step in range(400):
        names = tuple(f"layers.{os.urandom(4).hex()}/{k}" for k in range(4))
        rows.append(
            Row(step, 1.0 + step, {"loss": float(step)}, [Block(names, {"amax": np.ones(4, np.float32)})])
        )
        packed = pack(rows[-1], file.number_of)
        assert packed.left_out == 0
        file.append(step, packed)
    recording = read_file(tmp_path / "r")
    back = list(recording.rows())
    assert recording.lost > 0
    for row in back:
        written = rows[row.step]
        assert row.scalars in ({}, written.scalars)
        assert [b.names for b in row.blocks] in ([], [written.blocks[0].names])
    assert all(row.scalars and row.blocks for row in back[-20:])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    widths=st.lists(st.integers(0, 40), min_size=1, max_size=120),
    steps=st.integers(1, 60),
    hist=st.booleans(),
)
def test_at_any_time_the_newest_steps_are_there(
    tmp_path: Path, widths: list[int], steps: int, hist: bool
) -> None:
    """Whatever the sizes of the records: the last steps, unbroken, whole, and never more than asked for."""
    rows = [row_of(step, width=width, hist=hist and step % 7 == 0) for step, width in enumerate(widths)]
    write(tmp_path / f"r{next(COUNTER)}", rows, steps=steps).close()
    newest = max(tmp_path.iterdir(), key=lambda p: int(p.name[1:]))
    recording = read_file(newest)
    back = list(recording.rows())
    kept = min(steps, len(widths))
    assert [row.step for row in back] == list(range(len(widths) - kept, len(widths)))
    assert all(is_whole(row) for row in back)
    assert recording.missing == 0


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file that has gone round its rings a few times."""
    path = tmp_path_factory.mktemp("ring") / "r"
    write(path, [row_of(step, width=40, hist=step % 9 == 0) for step in range(90)], steps=70)
    return path.read_bytes()


def check(data: bytes) -> None:
    """Reads damaged bytes: a clear error, or only steps that were written."""
    try:
        recording = read(data)
    except RingError:
        return
    rows = list(recording.rows())
    assert all(is_whole(row) for row in rows)
    assert all(row.step < 90 for row in rows)
    tail = recording.tail()
    assert tail is None or is_whole(tail)
    if recording.now is not None:
        assert recording.now.data_id == f"b{recording.now.step}"


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_cut_off_anywhere(image: bytes, data: st.DataObject) -> None:
    """Any beginning of a file is read as far as it goes, or refused with a reason."""
    check(image[: data.draw(st.integers(0, len(image)))])


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_flipped_bits_never_invent_a_step(image: bytes, data: st.DataObject) -> None:
    """Bits that flip cost the records they hit and nothing else is made of them."""
    damaged = bytearray(image)
    for at in data.draw(st.lists(st.integers(0, len(image) - 1), min_size=1, max_size=30)):
        damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    check(bytes(damaged))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_overwritten_stretches(image: bytes, data: st.DataObject) -> None:
    """Stretches of another file, or of this one at another place, are not taken for records of theirs."""
    damaged = bytearray(image)
    at = data.draw(st.integers(PAGE, len(image) - 1))
    size = data.draw(st.integers(1, 20_000))
    of = data.draw(st.integers(0, len(image) - 1))
    piece = image[of : of + size] if data.draw(st.booleans()) else b"\xff" * size
    damaged[at : at + len(piece)] = piece
    check(bytes(damaged[: len(image)]))


@given(st.binary(max_size=400))
def test_garbage_is_refused(garbage: bytes) -> None:
    """Bytes that are no recorder raise RingError, with the magic bytes in front too."""
    for data in (garbage, MAGIC + garbage):
        with pytest.raises(RingError):
            read(data)


def test_one_flip_costs_one_step(image: bytes) -> None:
    """Everything but the record that was hit is still read."""
    whole = steps_of(read(image))
    layout = unpack_header(image).layout
    frame = next(iter(scan(image, layout.scalars, SCALARS)))
    damaged = bytearray(image)
    damaged[frame.at + 30] ^= 4
    recording = read(bytes(damaged))
    back = steps_of(recording)
    assert len(whole) - len(back) <= 1
    assert set(back) < set(whole) or back == whole


def test_a_torn_slot_leaves_the_older_half(tmp_path: Path) -> None:
    """A process that dies while it writes the step under way leaves the state before it."""
    file = write(tmp_path / "r", [row_of(0), row_of(1)])
    data = bytearray((tmp_path / "r").read_bytes())
    half = file.layout.now.size // 2
    frames = [data.find(NOW, at, at + half) for at in (file.layout.now.at, file.layout.now.at + half)]
    newest = max(frames, key=lambda at: struct.unpack_from("<Q", data, at + 16)[0])
    data[newest + 30] ^= 255
    now = read(bytes(data)).now
    assert now is not None
    assert now.step == 0


def test_a_header_that_lies_is_refused() -> None:
    """Sizes that cannot be, and another version, are refused before anything is read by them."""
    header = bytearray(pack_header(layout_of(SMALL, 4), rank=0, created=0.0))
    header[16] = 9
    with pytest.raises(RingError, match="version 9"):
        read(bytes(header))
    header = bytearray(pack_header(layout_of(SMALL, 4), rank=0, created=0.0))
    header[48:56] = struct.pack("<Q", 2**63)
    header[20:24] = b"\0\0\0\0"
    header[20:24] = struct.pack("<I", zlib.crc32(header[:136]))
    with pytest.raises(RingError, match="sizes cannot be"):
        read(bytes(header))


def test_a_forged_file_cannot_keep_the_reader_busy() -> None:
    """A region full of marks that each claim the rest of it is given up after a few passes."""
    head = seal(SCALARS, 0, b"")[:8] + struct.pack("<IIQ", 2**19, 0, 0)
    data = head * (2**20 // len(head))
    assert list(scan(data, Region(0, len(data)), SCALARS)) == []


def test_a_compressed_bomb_is_not_unpacked(tmp_path: Path) -> None:
    """A description that unpacks to more than it may is left out with a note."""
    file = RecorderFile(tmp_path / "r", size=2**26, steps=10, rank=0, created=0.0)
    assert file.slot(ENDING, b'"' + b"a" * 10_000_000 + b'"')
    assert read_file(tmp_path / "r").ending is None
    assert file.slot(RUN, b" " * (129 * 2**20))
    assert "larger than" in " ".join(read_file(tmp_path / "r").notes)
