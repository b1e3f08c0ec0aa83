"""Arrays to compressed bytes and back, bit for bit.

Layout: a count byte, then per array ``<BBBB`` (codec, dtype, number of dimensions, 0), the dimensions as
u32, the length of the payload as u32, and the payload. The codec is a byte per array, so a later version
may choose another one.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import blosc2
import numpy as np
import zstandard
from numpy.typing import NDArray

RAW, BLOSC2_ZSTD1_SHUFFLE = 0, 1
SMALL_BYTES = 256  # below this a compressor's own header costs more than it saves
_DTYPES: tuple[np.dtype[Any], ...] = tuple(np.dtype(name) for name in ("<f4", "<f8", "<i8", "<u4", "u1"))
_HEAD = struct.Struct("<BBBB")
_U32 = struct.Struct("<I")


def pack(arrays: Sequence[NDArray[Any]]) -> bytes:
    """The arrays as bytes; float32, float64, int64, uint32 and uint8 of any shape (at most 255 arrays)."""
    parts = [bytes([len(arrays)])]
    for array in arrays:
        array = np.ascontiguousarray(array)
        code = _DTYPES.index(array.dtype.newbyteorder("<"))
        raw = array.astype(_DTYPES[code], copy=False).tobytes()
        codec, payload = RAW, raw
        if len(raw) >= SMALL_BYTES:
            packed = blosc2.compress2(
                raw,
                codec=blosc2.Codec.ZSTD,
                clevel=1,
                typesize=array.itemsize,
                filters=[blosc2.Filter.SHUFFLE],
                filters_meta=[0],
                nthreads=1,
            )
            if len(packed) < len(raw):
                codec, payload = BLOSC2_ZSTD1_SHUFFLE, packed
        parts.append(_HEAD.pack(codec, code, array.ndim, 0))
        parts.extend(_U32.pack(n) for n in (*array.shape, len(payload)))
        parts.append(payload)
    return b"".join(parts)


def unpack(data: bytes, *, most: int | None = None) -> tuple[NDArray[Any], ...]:
    """The arrays of ``pack``, read-only, or only the first ``most``.

    Raises ValueError if the bytes are not what ``pack`` wrote.
    """
    view = memoryview(data)
    at, out = 1, []
    for _ in range(view[0] if most is None else min(most, view[0])):
        codec, code, ndim, _zero = _HEAD.unpack_from(view, at)
        at += _HEAD.size
        numbers = [_U32.unpack_from(view, at + 4 * i)[0] for i in range(ndim + 1)]
        at += 4 * (ndim + 1)
        shape, length = numbers[:-1], numbers[-1]
        payload = bytes(view[at : at + length])
        at += length
        if codec == BLOSC2_ZSTD1_SHUFFLE:
            payload = blosc2.decompress2(payload, nthreads=1)
        elif codec != RAW:
            raise ValueError(f"a block has codec {codec}, which this version does not know")
        if len(payload) != math.prod(shape) * _DTYPES[code].itemsize:
            raise ValueError("a block is shorter or longer than its shape says")
        out.append(np.frombuffer(payload, _DTYPES[code]).reshape(shape))
    return tuple(out)


def work_beside_other_threads() -> None:
    """Lets other threads run while blocks are compressed and expanded; holds for the whole process."""
    blosc2.set_releasegil(True)


def pack_mask(present: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """One bit per value of a [rows, columns] mask, or nothing if all are present."""
    return np.empty(0, np.uint8) if present.all() else np.packbits(present, axis=1)


def unpack_mask(bits: NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """The mask of ``pack_mask``."""
    if bits.size == 0:
        return np.ones(shape, bool)
    return np.unpackbits(bits, axis=1, count=shape[1]).astype(bool)


def squeeze(data: bytes) -> bytes:
    """Bytes such as JSON or an engine's state, compressed."""
    return zstandard.ZstdCompressor(level=3).compress(data)


def expand(data: bytes) -> bytes:
    """What ``squeeze`` took."""
    return zstandard.ZstdDecompressor().decompress(data)
