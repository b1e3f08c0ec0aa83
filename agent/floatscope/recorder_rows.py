"""A step as it stands in the flight recorder: scalars in one record, tensor statistics in another.

Names stand once in the file, in lists with a number; records refer to them by it. Layouts (little-endian):
scalars: step i64, time f64, count u32, that many list numbers u32, that many values f64. details: step i64,
time f64, blocks u32; per block: list number u32, tensors n u32, statistics u32; per statistic: list number
u32, masked u32, n values f32, and if masked ceil(n/8) bytes of presence, bit k%8 of byte k//8. A block whose
statistics are 0xffffffff is one of histograms: n x 64 counts u32.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.batch import Bool, Float32
from floatscope.protocol.errors import ProtocolError
from floatscope.protocol.names import HIST_BINS, MAX_SCALARS, MAX_STATS, MAX_STEP, MAX_TENSORS, check_name
from floatscope.protocol.ring import RingError
from floatscope.protocol.strict_json import loads
from floatscope.rows import Block, Histograms, Row

MAX_BLOCKS = 100_000
_HEAD = struct.Struct("<qdI")
_BLOCK = struct.Struct("<III")
_STAT = struct.Struct("<II")
_HISTOGRAMS = 2**32 - 1

NumberOf = Callable[[tuple[str, ...]], int | None]
"""The number of a list of names; None if there is no room for it, and what carries the names is left out."""


@dataclass(frozen=True)
class Packed:
    """A step's records. details: None without statistics.  left_out: values whose names had no room."""

    scalars: bytes
    details: bytes | None
    left_out: int = 0


def pack(row: Row, number_of: NumberOf) -> Packed:
    """The records of a row."""
    scalars = [(number_of((name,)), value) for name, value in row.scalars.items()]
    known = [(n, value) for n, value in scalars if n is not None]
    left_out = len(scalars) - len(known)
    head = _HEAD.pack(row.step, row.time, len(known))
    numbers = np.array([n for n, _ in known], "<u4").tobytes()
    packed = head + numbers + np.array([value for _, value in known], "<f8").tobytes()
    if not row.blocks and not row.histograms:
        return Packed(packed, None, left_out)
    blocks: list[bytes] = []
    for block in (b for b in row.blocks if b.names):
        number = number_of(block.names)
        stats = [(number_of((name,)), name, values) for name, values in block.stats.items()]
        told = [(n, name, values) for n, name, values in stats if n is not None]
        if number is None or len(told) < len(stats):
            left_out += len(block.names) * (len(stats) - (0 if number is None else len(told)))
        if number is None or not told:
            continue
        parts = [_BLOCK.pack(number, len(block.names), len(told))]
        for n, name, values in told:
            mask = block.present.get(name)
            parts.append(_STAT.pack(n, mask is not None))
            parts.append(np.ascontiguousarray(values, "<f4").tobytes())
            if mask is not None:
                parts.append(np.packbits(mask, bitorder="little").tobytes())
        blocks.append(b"".join(parts))
    for part in (p for p in row.histograms if p.names):
        number = number_of(part.names)
        if number is None:
            left_out += len(part.names)
            continue
        counts = np.ascontiguousarray(part.counts, "<u4").tobytes()
        blocks.append(_BLOCK.pack(number, len(part.names), _HISTOGRAMS) + counts)
    head = _HEAD.pack(row.step, row.time, len(blocks))
    return Packed(packed, b"".join((head, *blocks)) if blocks else None, left_out)


def pack_names(names: tuple[str, ...]) -> bytes:
    """The payload of a list of names."""
    return json.dumps(names, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def unpack_names(payload: bytes) -> tuple[str, ...]:
    """A list of names again. Raises ProtocolError for one that cannot be."""
    names = loads(payload, field="names")
    if not isinstance(names, list) or not 0 < len(names) <= MAX_TENSORS:
        raise ProtocolError("names", f"a list of 1 to {MAX_TENSORS:,} names", str(names)[:100])
    return tuple(check_name(name, field="names") for name in names)


Names = Mapping[int, tuple[str, ...]]


def unpack(scalars: bytes | None, details: bytes | None, names: Names) -> tuple[Row, int]:
    """The row of one or both records, and how many of its columns are left out since their names are lost.

    Raises RingError for records that cannot be.
    """
    row: Row | None = None
    lost = 0
    if scalars is not None:
        row, lost = _scalars(scalars, names)
    if details is not None:
        blocks, lost_too = _details(details, names)
        lost += lost_too
        if row is None:
            row = blocks
        elif (row.step, row.time) == (blocks.step, blocks.time) or math.isnan(row.time):
            row.blocks, row.histograms = blocks.blocks, blocks.histograms
    if row is None:
        raise RingError("holds a step without a record")
    return row, lost


def time_of(payload: bytes) -> float:
    """The time in a record, Unix seconds; NaN if it has none."""
    try:
        return _head(payload)[1]
    except RingError:
        return math.nan


def _head(payload: bytes) -> tuple[int, float, int]:
    if len(payload) < _HEAD.size:
        raise RingError("holds a record that is too short")
    step, time, count = _HEAD.unpack_from(payload)
    if not 0 <= step <= MAX_STEP or math.isinf(time):
        raise RingError("holds a record without a step or time that can be")
    return step, time, count


def _scalars(payload: bytes, names: Names) -> tuple[Row, int]:
    step, time, count = _head(payload)
    if count > MAX_SCALARS or len(payload) != _HEAD.size + 12 * count:
        raise RingError("holds a record of scalars whose length does not fit its count")
    numbers = np.frombuffer(payload, "<u4", count, _HEAD.size)
    values = np.frombuffer(payload, "<f8", count, _HEAD.size + 4 * count)
    row = Row(step, time)
    lost = 0
    for number, value in zip(numbers.tolist(), values.tolist(), strict=True):
        found = names.get(number)
        if found is None or len(found) != 1:
            lost += 1
        else:
            row.scalars[found[0]] = value
    return row, lost


def _details(payload: bytes, names: Names) -> tuple[Row, int]:
    step, time, count = _head(payload)
    if count > MAX_BLOCKS:
        raise RingError("holds a record with too many blocks")
    row = Row(step, time)
    at, lost = _HEAD.size, 0
    for _ in range(count):
        if len(payload) < at + _BLOCK.size:
            raise RingError("holds a record of statistics that is too short")
        number, width, stats = _BLOCK.unpack_from(payload, at)
        at += _BLOCK.size
        if not 0 < width <= MAX_TENSORS or MAX_STATS < stats != _HISTOGRAMS:
            raise RingError("holds a record with more tensors or statistics than can be")
        tensors = names.get(number, ())
        if stats == _HISTOGRAMS:
            at, counts = _counts(payload, at, width)
            lost += len(tensors) != width
            if len(tensors) == width:
                row.histograms.append(Histograms(tensors, counts))
            continue
        values: dict[str, Float32] = {}
        present: dict[str, Bool] = {}
        for _ in range(stats):
            at, stat, column, mask = _stat(payload, at, width)
            name = names.get(stat, ())
            if len(tensors) != width or len(name) != 1:
                lost += 1
                continue
            values[name[0]] = column
            if mask is not None:
                present[name[0]] = mask
        if values:
            row.blocks.append(Block(tensors, values, present))
    if at != len(payload):
        raise RingError("holds a record of statistics whose length does not fit")
    return row, lost


def _counts(payload: bytes, at: int, width: int) -> tuple[int, NDArray[np.uint32]]:
    cells = width * HIST_BINS
    if len(payload) < at + 4 * cells:
        raise RingError("holds a record of histograms that is too short")
    counts = np.frombuffer(payload, "<u4", cells, at).astype(np.uint32).reshape(width, HIST_BINS)
    return at + 4 * cells, counts


def _stat(payload: bytes, at: int, width: int) -> tuple[int, int, Float32, Bool | None]:
    if len(payload) < at + _STAT.size + 4 * width:
        raise RingError("holds a record of statistics that is too short")
    number, masked = _STAT.unpack_from(payload, at)
    at += _STAT.size
    column = np.frombuffer(payload, "<f4", width, at).astype(np.float32)
    at += 4 * width
    if not masked:
        return at, number, column, None
    size = (width + 7) // 8
    if len(payload) < at + size:
        raise RingError("holds a record of statistics that is too short")
    bits = np.frombuffer(payload, np.uint8, size, at)
    mask = np.unpackbits(bits, count=width, bitorder="little").astype(bool)
    return at + size, number, column, mask
