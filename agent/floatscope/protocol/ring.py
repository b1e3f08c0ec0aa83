"""The flight recorder's file: where things stand in it, and how a piece shows that it is whole.

A header page, two halves of a slot for the step under way, two for the ending, two for the description of the
run, a list of names, a ring of the steps' scalars and a ring of their tensor statistics. Everything but the
header is a frame: kind, CRC-32, length, number, payload. A process may be killed between any two bytes, so
nothing in the file says where the newest piece is: a reader looks for frames and believes those whose CRC is
right. A slot's halves are written in turn, so one of them is always whole.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

MAGIC = b"\xf5floatscope\r\n\x1a\n\x00"  # bytes that any transfer as text would damage
VERSION = 1
PAGE = 4096

NOW, ENDING, RUN = b"FSnw", b"FSen", b"FSru"
NAMES, SCALARS, DETAILS = b"FSnm", b"FSsc", b"FSde"
PACKED = 1
"""Flag of a frame whose payload is compressed (zlib)."""

_HEADER = struct.Struct("<16sIIIId12Q")  # magic, version, CRC, rank, steps, created, places and sizes
_FRAME = struct.Struct("<4sIIIQ")  # kind, CRC, length of the payload, flags, number
FRAME_BYTES = _FRAME.size
MAX_PAYLOAD_BYTES = 2**30
MAX_FILE_BYTES = 2**40
_SCAN_FACTOR = 4  # bytes whose CRC is taken, per byte of a region: a forged file cannot keep a reader busy


class Buffer(Protocol):
    """Bytes of a file: ``bytes``, or a view that reads them as they are wanted."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> bytes:
        """The bytes of a slice."""

    def find(self, wanted: bytes, start: int, end: int, /) -> int:
        """Offset of the first ``wanted`` between start and end, or -1."""


class RingError(ValueError):
    """The file is no flight recorder that can be read; the message says what is wrong and what to do."""


@dataclass(frozen=True)
class Region:
    """at: offset in the file.  size: bytes."""

    at: int
    size: int

    @property
    def end(self) -> int:
        """Offset behind it."""
        return self.at + self.size


@dataclass(frozen=True)
class Layout:
    """Where things stand. now, ending and run hold two halves of a slot each; steps: how many are kept."""

    now: Region
    ending: Region
    run: Region
    names: Region
    scalars: Region
    details: Region
    steps: int

    @property
    def regions(self) -> tuple[Region, ...]:
        """All of them, in the order of the file."""
        return (self.now, self.ending, self.run, self.names, self.scalars, self.details)

    @property
    def size(self) -> int:
        """Bytes of the whole file, once everything is used."""
        return self.details.end


def layout_of(size: int, steps: int) -> Layout:
    """Shares out ``size`` bytes (at least 64 KiB): most of it to tensor statistics."""
    sizes = (
        2 * PAGE,
        2 * _pages(size // 32, least=1, most=8),
        2 * _pages(size // 32, least=1, most=256),
        _pages(size // 16, least=1, most=1024),
        _pages(min(size // 8, steps * 8192), least=2, most=2**20),
    )
    regions = []
    at = PAGE
    for part in sizes:
        regions.append(Region(at, part))
        at += part
    regions.append(Region(at, max(size - at, PAGE)))
    return _layout(regions, steps)


def _layout(regions: list[Region], steps: int) -> Layout:
    now, ending, run, names, scalars, details = regions
    return Layout(now, ending, run, names, scalars, details, steps)


def _pages(size: int, *, least: int, most: int) -> int:
    return PAGE * min(max(size // PAGE, least), most)


def pack_header(layout: Layout, *, rank: int, created: float) -> bytes:
    """The header page. created: Unix seconds."""
    places = [n for region in layout.regions for n in (region.at, region.size)]
    blank = _HEADER.pack(MAGIC, VERSION, 0, rank, layout.steps, created, *places)
    crc = zlib.crc32(blank)
    return _HEADER.pack(MAGIC, VERSION, crc, rank, layout.steps, created, *places).ljust(PAGE, b"\0")


@dataclass(frozen=True)
class Header:
    """What the first page says."""

    layout: Layout
    rank: int
    created: float


def unpack_header(data: Buffer) -> Header:
    """Reads the header. Raises RingError for anything but a whole header of this version."""
    head = data[: _HEADER.size]
    if head[: len(MAGIC)] != MAGIC[: len(head)] or not head:
        raise RingError("is no flight recorder: it does not begin with its magic bytes")
    if len(head) < _HEADER.size:
        raise RingError(f"is cut off in its header: {len(head):,} bytes are left. Copy it again as binary")
    _, version, crc, rank, steps, created, *places = _HEADER.unpack(head)
    if version != VERSION:
        raise RingError(
            f"is a flight recorder of version {version}; this floatscope reads version {VERSION}. "
            "Read it with the floatscope that wrote it"
        )
    if zlib.crc32(head[:20] + b"\0\0\0\0" + head[24:]) != crc:
        raise RingError("has a damaged header (its checksum is wrong). Copy it again as binary")
    regions = [Region(at, size) for at, size in zip(places[::2], places[1::2], strict=True)]
    ends = [PAGE, *(region.end for region in regions)]
    if [region.at for region in regions] != ends[:-1] or ends[-1] > MAX_FILE_BYTES:
        raise RingError("has a header whose sizes cannot be")
    return Header(_layout(regions, steps), rank, created)


@dataclass(frozen=True)
class Frame:
    """A whole piece. at: offset in the file.  payload: still packed if the flag says so."""

    at: int
    number: int
    flags: int
    payload: bytes

    @property
    def end(self) -> int:
        """Offset behind it."""
        return self.at + FRAME_BYTES + len(self.payload)


def seal(kind: bytes, number: int, payload: bytes, *, flags: int = 0) -> bytes:
    """A frame around the payload."""
    size = len(payload)
    crc = zlib.crc32(payload, zlib.crc32(_FRAME.pack(kind, 0, size, flags, number)))
    return _FRAME.pack(kind, crc, size, flags, number) + payload


def frame_at(data: Buffer, at: int, end: int, kind: bytes) -> Frame | None:
    """The frame that begins at ``at`` and ends before ``end``, or None if there is no whole one."""
    size = _claimed(data, at, end, kind)
    if size is None:
        return None
    head = _FRAME.unpack(data[at : at + FRAME_BYTES])
    payload = data[at + FRAME_BYTES : at + FRAME_BYTES + size]
    blank = _FRAME.pack(head[0], 0, head[2], head[3], head[4])
    if len(payload) != head[2] or zlib.crc32(payload, zlib.crc32(blank)) != head[1]:
        return None
    return Frame(at, head[4], head[3], payload)


def _claimed(data: Buffer, at: int, end: int, kind: bytes) -> int | None:
    """Length of the payload, if a frame of this kind may begin here."""
    if at < 0 or at + FRAME_BYTES > min(end, len(data)):
        return None
    found, _, size, _, _ = _FRAME.unpack(data[at : at + FRAME_BYTES])
    fits = size <= MAX_PAYLOAD_BYTES and at + FRAME_BYTES + size <= min(end, len(data))
    return size if found == kind and fits else None


def scan(data: Buffer, region: Region, kind: bytes) -> Iterator[Frame]:
    """All whole frames of a kind in a region, in the order of the file."""
    at, end = region.at, min(region.end, len(data))
    budget = _SCAN_FACTOR * region.size + PAGE
    while budget > 0:
        at = data.find(kind, at, end)
        if at < 0:
            return
        budget -= FRAME_BYTES + (_claimed(data, at, end, kind) or 0)
        frame = frame_at(data, at, end, kind)
        if frame is None:
            at += 1
            continue
        yield frame
        at = frame.end


def halves(region: Region) -> tuple[Region, Region]:
    """The two halves of a slot."""
    half = region.size // 2
    return Region(region.at, half), Region(region.at + half, half)


def newest(data: Buffer, region: Region, kind: bytes) -> Frame | None:
    """What a slot holds: the newer of its halves that are whole."""
    found = [frame_at(data, half.at, half.end, kind) for half in halves(region)]
    return max((f for f in found if f is not None), key=lambda f: f.number, default=None)


def unpacked(frame: Frame, *, most: int) -> bytes:
    """The payload, decompressed if need be. Raises RingError beyond ``most`` bytes or if it is damaged."""
    if not frame.flags & PACKED:
        return frame.payload
    machine = zlib.decompressobj()
    try:
        data = machine.decompress(frame.payload, most)
    except zlib.error as error:
        raise RingError(f"holds compressed data that is damaged ({error})") from error
    if machine.unconsumed_tail or not machine.eof:
        raise RingError(f"holds compressed data that is damaged or larger than {most:,} bytes")
    return data
