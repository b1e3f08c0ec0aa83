"""CRC-32C (Castagnoli), as TFRecord and LevelDB logs use it, masked.

Polynomial 0x1EDC6F41 reflected; the mask is that of leveldb/util/crc32c.h.
"""

from __future__ import annotations

from functools import cache

_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8


@cache
def _table() -> tuple[int, ...]:
    out = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        out.append(value)
    return tuple(out)


def crc32c(data: bytes, value: int = 0) -> int:
    """The checksum of ``data`` after data whose checksum is ``value``."""
    table = _table()
    value ^= 0xFFFFFFFF
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def masked(value: int) -> int:
    """A checksum as it is stored: rotated right by 15 bits, plus a constant."""
    return (((value >> 15) | (value << 17)) + _MASK_DELTA) & 0xFFFFFFFF
