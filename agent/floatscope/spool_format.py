"""The bytes of a spool: segment files of frames that are only ever appended to.

A segment begins with ``MAGIC``. A frame is a fixed head, a slot and a payload. The head has its own checksum,
so a damaged payload costs one frame and a damaged head is passed by looking for the next one; a tail that a
killed process left unfinished ends the file. The slot (16 bytes with a checksum of their own) is the only
thing that is written again in place: the seq under which a batch was first sent, and that the server has it.
Overwriting needs no room, so it works on a disk that is full.

Nothing here touches a file, and no byte that is read is trusted: lengths are checked against what is there
before anything is taken out.
"""

from __future__ import annotations

import enum
import struct
import zlib
from dataclasses import dataclass

MAGIC = b"FSPOOL1\n"
MARK = b"FSfr"
MAX_PAYLOAD_BYTES = 256 * 2**20
_HEAD = struct.Struct(
    "<4sBBHQQIIIII"
)  # mark kind flags 0 first last steps detail length payload_crc head_crc
_SLOT = struct.Struct("<qII")  # seq (-1: none) state crc
HEAD_BYTES = _HEAD.size + _SLOT.size
_NO_SEQ = -1
_MOST_NUMBER = 2**62  # of batches: what is above was never written, and could not be counted on


class Kind(enum.IntEnum):
    """What a frame's payload is."""

    BATCH = 1  # the body of a request
    TABLE = 2  # a tensor table as canonical JSON; bodies of the same segment name it by its hash


class Flag(enum.IntFlag):
    """How a body is encoded."""

    NONE = 0
    HAS_TABLE = 1
    GZIP = 2
    JSON = 4


@dataclass(frozen=True)
class Frame:
    """One frame as read.

    first, last: numbers of the packed batches it holds; a frame with a wider range takes the place of those.
    steps: steps of the batch.  detail: how many of them carry tensor statistics.  at: where it begins in the
    file.  length: bytes of the payload, which begins ``HEAD_BYTES`` after ``at``.
    """

    kind: Kind
    flags: Flag
    first: int
    last: int
    steps: int
    detail: int
    at: int
    length: int
    seq: int | None = None
    is_delivered: bool = False

    @property
    def payload_at(self) -> int:
        """Where the payload begins in the file."""
        return self.at + HEAD_BYTES

    @property
    def slot_at(self) -> int:
        """Where the slot begins in the file."""
        return self.at + _HEAD.size


def pack(
    kind: Kind,
    payload: bytes,
    *,
    flags: Flag = Flag.NONE,
    first: int = 0,
    last: int = 0,
    steps: int = 0,
    detail: int = 0,
    seq: int | None = None,
    is_delivered: bool = False,
) -> bytes:
    """The bytes of a frame. Raises ValueError for a payload that is too long."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"a payload of at most {MAX_PAYLOAD_BYTES:,} bytes, got {len(payload):,}")
    head = _HEAD.pack(MARK, kind, flags, 0, first, last, steps, detail, len(payload), zlib.crc32(payload), 0)[
        :-4
    ]
    return head + zlib.crc32(head).to_bytes(4, "little") + slot(seq, is_delivered=is_delivered) + payload


def slot(seq: int | None, *, is_delivered: bool) -> bytes:
    """The bytes of a slot."""
    head = _SLOT.pack(_NO_SEQ if seq is None else seq, int(is_delivered), 0)[:-4]
    return head + zlib.crc32(head).to_bytes(4, "little")


def scan(data: bytes) -> tuple[list[Frame], int]:
    """The whole frames of a segment, in order, and how many places were damaged.

    Never raises. Frames before a damaged place are all found; what is found was written as it is, unless its
    slot was damaged: then it counts as not sent yet.
    """
    if data[: len(MAGIC)] != MAGIC:
        return [], int(len(data) > 0)
    frames: list[Frame] = []
    damaged = 0
    at = len(MAGIC)
    while at < len(data):
        frame = _frame(data, at)
        if frame is None:
            damaged += 1
            at = data.find(MARK, at + 1)
            if at < 0:
                break
            continue
        end = frame.payload_at + frame.length
        if zlib.crc32(memoryview(data)[frame.payload_at : end]) == _payload_crc(data, at):
            frames.append(frame)
            at = end
        else:
            damaged += 1
            at = end
    return frames, damaged


def _frame(data: bytes, at: int) -> Frame | None:
    """The frame that begins here, or None if there is no whole one with a sound head."""
    if len(data) - at < HEAD_BYTES:
        return None
    mark, kind, flags, zero, first, last, steps, detail, length, _, crc = _HEAD.unpack_from(data, at)
    if mark != MARK or crc != zlib.crc32(data[at : at + _HEAD.size - 4]):
        return None
    if (
        length > min(MAX_PAYLOAD_BYTES, len(data) - at - HEAD_BYTES)
        or not first <= last < _MOST_NUMBER
        or zero
    ):
        return None
    try:
        kind, flags = Kind(kind), Flag(flags)
    except ValueError:
        return None
    seq, state, slot_crc = _SLOT.unpack_from(data, at + _HEAD.size)
    start = at + _HEAD.size
    is_sound = slot_crc == zlib.crc32(data[start : start + _SLOT.size - 4]) and seq >= _NO_SEQ
    return Frame(
        kind=kind,
        flags=flags,
        first=first,
        last=last,
        steps=steps,
        detail=detail,
        at=at,
        length=length,
        seq=seq if is_sound and seq != _NO_SEQ else None,
        is_delivered=is_sound and state == 1,
    )


def _payload_crc(data: bytes, at: int) -> int:
    return int(_HEAD.unpack_from(data, at)[-2])
