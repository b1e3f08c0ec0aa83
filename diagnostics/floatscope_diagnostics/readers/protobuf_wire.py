"""Decodes the protobuf wire format without a schema.

Format: protobuf.dev/programming-guides/encoding. Groups, which nobody has written since 2008, are refused.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class WireError(ValueError):
    """The bytes are no protobuf message."""


def fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Number, wire type and value of each field in order: an int for VARINT, else the bytes.

    Raises WireError where the message breaks; what came before stands.
    """
    at, size = 0, len(data)
    while at < size:
        key, at = varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value, at = varint(data, at)
            yield number, wire, value
            continue
        if wire == BYTES:
            length, at = varint(data, at)
        elif wire == FIXED64:
            length = 8
        elif wire == FIXED32:
            length = 4
        else:
            raise WireError(f"wire type {wire} in field {number}")
        if number == 0 or length > size - at:
            raise WireError(f"field {number} reaches beyond its message")
        yield number, wire, data[at : at + length]
        at += length


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The unsigned varint at a position, and the position behind it."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise WireError("a number without end")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def signed(value: int) -> int:
    """A varint of an int32 or int64 field: negative numbers are written as 64-bit two's complement."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >= 1 << 63 else value


def numbers(value: int | bytes, code: str) -> list[float]:
    """The values of a repeated number, packed or single. code: struct's letter, or ``v`` for a varint."""
    if isinstance(value, int):
        return [float(signed(value))]
    if code == "v":
        out: list[float] = []
        at = 0
        while at < len(value):
            number, at = varint(value, at)
            out.append(float(signed(number)))
        return out
    width = struct.calcsize("<" + code)
    if len(value) % width:
        raise WireError("packed numbers of uneven length")
    return [float(x) for x in struct.unpack(f"<{len(value) // width}{code}", value)]
