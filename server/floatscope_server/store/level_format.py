"""Levels as bytes. Counts that say nothing (all rows present, no NaN, no Inf) take no room."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.batch import Int64
from floatscope_server.codec import pack, unpack
from floatscope_server.levels import Level

_NOTHING = np.empty(0, np.uint32)


def pack_level(level: Level) -> bytes:
    """Bins, rows of each bin, minimum, maximum, count, nan, inf and, unless it is thin, mean and last."""
    rows = level.count.max(axis=0) if len(level.count) else np.zeros(len(level.bins), np.int64)
    arrays: list[NDArray[Any]] = [
        np.array([level.width, *level.bins], np.int64),
        rows.astype(np.uint32),
        level.minimum,
        level.maximum,
        _NOTHING if (level.count == rows).all() else level.count.astype(np.uint32),
        level.nan.astype(np.uint32) if level.nan.any() else _NOTHING,
        level.inf.astype(np.uint32) if level.inf.any() else _NOTHING,
    ]
    if level.mean is not None and level.last is not None:
        arrays += [level.mean, level.last]
    return pack(arrays)


def unpack_level(data: bytes, *, thin: bool = False) -> Level:
    """The level. thin: leaves out mean and last, which are then not decoded."""
    head, rows, minimum, maximum, count, nan, inf, *rest = unpack(data, most=7 if thin else None)
    shape = minimum.shape
    return Level(
        width=int(head[0]),
        bins=head[1:],
        minimum=minimum,
        maximum=maximum,
        count=np.broadcast_to(rows.astype(np.int64), shape) if not count.size else count.astype(np.int64),
        nan=_counts(nan, shape),
        inf=_counts(inf, shape),
        mean=rest[0] if rest else None,
        last=rest[1] if rest else None,
    )


def _counts(packed: NDArray[Any], shape: tuple[int, ...]) -> Int64:
    return packed.astype(np.int64) if packed.size else np.broadcast_to(np.zeros((), np.int64), shape)
