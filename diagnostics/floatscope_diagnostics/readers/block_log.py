"""The record log of W&B's ``.wandb`` files: LevelDB's log format with a file header of its own.

Blocks of 32 KiB. A record's parts have a header of 7 bytes: CRC-32 (uint32), length (uint16), type; little
endian. Format: leveldb/doc/log_format.md, and wandb's datastore, whose checksum is zlib's CRC-32 of the type
and the data.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from floatscope_diagnostics.readers.opening import Opened

FILE_HEADER = b":W&B\xe1\xbe\x00"  # ident, magic 0xBEE1, version 0
MAX_RECORD_BYTES = 64 << 20
_BLOCK_BYTES = 1 << 15
_HEADER_BYTES = 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def records(opened: Opened) -> Iterator[bytes]:
    """The records that are whole. Damaged ones and a missing end are told in ``opened.notes``."""
    held: bytearray | None = None
    broken = 0
    for kind, data in _parts(opened):
        if kind == _FULL:
            broken += held is not None
            held = None
            yield data
        elif kind == _FIRST:
            broken += held is not None
            held = bytearray(data)
        elif kind in (_MIDDLE, _LAST) and held is not None and len(held) + len(data) <= MAX_RECORD_BYTES:
            held += data
            if kind == _LAST:
                yield bytes(held)
                held = None
        else:
            broken += 1
            held = None
    if broken:
        opened.notes.append(f"{broken:,} damaged parts of records were passed over")
    if held is not None:
        opened.notes.append("the last record is cut off: the end of the log is missing")


def _parts(opened: Opened) -> Iterator[tuple[int, bytes]]:
    """Type and data of each part; type 0 where a part is damaged and the rest of its block is given up."""
    at = len(opened.read(len(FILE_HEADER)))
    while block := opened.read(_BLOCK_BYTES - at):
        position = 0
        while position + _HEADER_BYTES <= len(block):
            header = block[position : position + _HEADER_BYTES]
            start = position + _HEADER_BYTES
            end = start + int.from_bytes(header[4:6], "little")
            data = block[start:end]
            if header == bytes(_HEADER_BYTES):
                break  # the writer fills a block's end with NULs
            if end > len(block) or zlib.crc32(data, zlib.crc32(header[6:])) != int.from_bytes(
                header[:4], "little"
            ):
                yield 0, b""
                break
            yield header[6], data
            position = end
        at = 0
