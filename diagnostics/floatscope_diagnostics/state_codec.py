"""Saves a tree of plain values and numpy arrays as bytes and reads it back, without pickle.

Layout: ``FSD1``, header length (uint32, little endian), header JSON, array bytes; everything after the magic
zlib-compressed. In the header an array is ``{"__array__": [dtype, shape, offset, size]}``. Floats survive
exactly (Python's repr), NaN and Inf included.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

MAGIC = b"FSD1"
MAX_STATE_BYTES = 1 << 30  # a state is a few hundred bytes a tensor; 1 GiB is far beyond 100,000 tensors
_DTYPES = frozenset({"bool", "int8", "uint8", "int16", "int32", "int64", "float32", "float64"})
_KEY = "__array__"


class StateError(ValueError):
    """The bytes are not a state written by this version; start the run's diagnosis afresh."""


def pack(tree: Mapping[str, Any]) -> bytes:
    """The tree as bytes.

    Raises TypeError for anything but dict, list, tuple, str, number, bool, None and array.
    """
    blobs: list[bytes] = []
    size = 0

    def walk(value: Any) -> Any:
        nonlocal size
        if isinstance(value, np.ndarray):
            if value.dtype.name not in _DTYPES:
                raise TypeError(f"an array of {value.dtype} cannot be saved")
            raw = np.ascontiguousarray(value).tobytes()
            entry = {_KEY: [value.dtype.name, list(value.shape), size, len(raw)]}
            blobs.append(raw)
            size += len(raw)
            return entry
        if isinstance(value, Mapping):
            return {str(k): walk(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [walk(v) for v in value]
        if isinstance(value, np.generic):
            return value.item()
        return value

    header = json.dumps(walk(tree), separators=(",", ":")).encode()
    return MAGIC + zlib.compress(struct.pack("<I", len(header)) + header + b"".join(blobs), 1)


def unpack(data: bytes) -> dict[str, Any]:
    """The tree again; arrays are writable copies.

    Raises StateError when the bytes are damaged or too large.
    """
    if data[:4] != MAGIC:
        raise StateError("not a saved diagnosis state: it does not begin with FSD1")
    worker = zlib.decompressobj()
    try:
        raw = worker.decompress(data[4:], MAX_STATE_BYTES)
    except zlib.error as error:
        raise StateError(f"the saved diagnosis state is damaged: {error}") from error
    if worker.unconsumed_tail or not worker.eof:
        raise StateError("the saved diagnosis state is cut off or larger than 1 GiB")
    if len(raw) < 4:
        raise StateError("the saved diagnosis state is cut off")
    (length,) = struct.unpack_from("<I", raw)
    body = memoryview(raw)[4 + length :]

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            if _KEY in value:
                name, shape, offset, size = value[_KEY]
                if name not in _DTYPES or offset < 0 or size < 0 or offset + size > len(body):
                    raise StateError("the saved diagnosis state has an array that does not fit")
                return np.frombuffer(body[offset : offset + size], dtype=name).reshape(shape).copy()
            return {k: walk(v) for k, v in value.items()}
        if isinstance(value, list):
            return [walk(v) for v in value]
        return value

    try:
        tree = walk(json.loads(bytes(raw[4 : 4 + length])))
    except (ValueError, TypeError, KeyError) as error:
        raise StateError(f"the saved diagnosis state is damaged: {error}") from error
    if not isinstance(tree, dict):
        raise StateError("the saved diagnosis state is not an object")
    return tree
