"""Stored values of tensors: .npy, .safetensors, and the folder of a captured step.

Files are mapped, not read, and of large tensors some rows are taken. Nothing in a file is executed.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.capture_folder import BATCH_PREFIX, INFO_FILE, TENSORS_FILE
from floatscope_diagnostics.readers.run_log import UnreadableLog

MOST_ELEMENTS = 2**22
"""Elements that are cast; of a larger tensor rows from everywhere in it."""
MOST_SCANNED = 2**31
"""Elements that are read for the amax of the whole tensor."""
MAX_HEADER_BYTES = 32 * 2**20
MAX_TENSORS = 100_000
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


@dataclass(frozen=True, eq=False)
class Values:
    """A tensor as float32 [rows, columns].

    every: one row of so many was taken.  whole_amax: of all rows then, None if it was not looked for.
    """

    name: str
    values: NDArray[np.float32]
    every: int = 1
    whole_amax: float | None = None


def is_values_file(path: Path) -> bool:
    """Whether this is a file of values or a capture, not a log."""
    if path.is_dir():
        return (path / INFO_FILE).is_file()
    return path.suffix in (".npy", ".safetensors")


def names_in(path: Path) -> tuple[str, ...]:
    """The names of the tensors of real numbers, by which ``read_values`` reads them."""
    return tuple(_Opened(path).tensors)


def read_values(path: Path, names: tuple[str, ...]) -> Iterator[Values]:
    """The tensors of these names, one at a time. Raises UnreadableLog for what cannot be read."""
    opened = _Opened(path)
    for name in names:
        yield _sampled(name, opened.array(name), is_bf16=opened.is_bf16(name))


class _Opened:
    """A file whose header was read and checked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._prefix = ""
        if path.is_dir():
            self._path, self._prefix = path / TENSORS_FILE, BATCH_PREFIX
        try:
            self.tensors = self._npy() if self._path.suffix == ".npy" else self._safetensors()
        except OSError as error:
            raise UnreadableLog(f"cannot be read: {error.strerror or error}") from error
        if not self.tensors and path.is_dir():
            raise UnreadableLog(
                "the capture holds a batch of whole numbers (tokens) and no tensors of layers: run the step "
                "again and store the tensors as .safetensors to ask about them"
            )
        if not self.tensors:
            raise UnreadableLog(
                "holds no tensor of real numbers in float64, float32, float16 or bfloat16; values that were "
                "cast to 8 bits already do not say what another format would have done"
            )

    def is_bf16(self, name: str) -> bool:
        return self.tensors[name][0] == "BF16"

    def array(self, name: str) -> NDArray[Any]:
        dtype, shape, offset = self.tensors[name]
        try:
            return np.memmap(self._path, _DTYPES[dtype], "r", offset, tuple(shape) or (1,))
        except (OSError, ValueError) as error:
            raise UnreadableLog(f"{name} cannot be mapped: {error}") from error

    def _npy(self) -> dict[str, tuple[str, list[int], int]]:
        with self._path.open("rb") as file:
            try:
                version = np.lib.format.read_magic(file)
                read = {
                    (1, 0): np.lib.format.read_array_header_1_0,
                    (2, 0): np.lib.format.read_array_header_2_0,
                }.get(version)
                if read is None:
                    raise ValueError(f"version {version} of the format is not known")
                shape, is_fortran, dtype = read(file)
            except ValueError as error:
                raise UnreadableLog(f"is no .npy file: {str(error)[:200]}") from error
            offset = file.tell()
        names = {np.dtype(text): name for name, text in _DTYPES.items() if name != "BF16"}
        if dtype not in names:
            return {}
        if is_fortran and len(shape) > 1:
            raise UnreadableLog("is stored by columns (Fortran order); save it with numpy.ascontiguousarray")
        self._check_size(self._path.name, math.prod(shape) * dtype.itemsize, offset)
        return {self._path.stem: (names[dtype], [int(n) for n in shape], offset)} if math.prod(shape) else {}

    def _safetensors(self) -> dict[str, tuple[str, list[int], int]]:
        size = self._path.stat().st_size
        with self._path.open("rb") as file:
            head = file.read(8)
            length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
            if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
                raise UnreadableLog("is no .safetensors file: its header's length is not that of a header")
            raw = file.read(length)
        try:
            header = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise UnreadableLog("is no .safetensors file: its header is no JSON") from error
        if not isinstance(header, dict) or len(header) > MAX_TENSORS:
            raise UnreadableLog(f"is no .safetensors file of at most {MAX_TENSORS:,} tensors")
        found: dict[str, tuple[str, list[int], int]] = {}
        for name, entry in header.items():
            if name == "__metadata__" or not name.startswith(self._prefix):
                continue
            place = self._entry(name, entry, 8 + length)
            if place is not None:
                found[name.removeprefix(self._prefix)] = place
        return found

    def _entry(self, name: str, entry: object, start: int) -> tuple[str, list[int], int] | None:
        if not isinstance(entry, dict):
            raise UnreadableLog(f"{name[:100]} is described by no object")
        dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
        if not isinstance(shape, list) or not isinstance(offsets, list) or len(offsets) != 2:
            raise UnreadableLog(f"{name[:100]} has no shape or no place in the file")
        if len(shape) > 64 or not all(type(n) is int and 0 <= n < 2**48 for n in (*shape, *offsets)):
            raise UnreadableLog(f"{name[:100]} has an odd shape or place in the file")
        if dtype not in _DTYPES or not math.prod(shape):
            return None
        length = math.prod(shape) * np.dtype(_DTYPES[dtype]).itemsize
        if offsets[1] - offsets[0] != length:
            raise UnreadableLog(f"{name[:100]} has a shape that does not fit its place in the file")
        self._check_size(name, length, start + offsets[0])
        return str(dtype), shape, start + offsets[0]

    def _check_size(self, name: str, length: int, offset: int) -> None:
        if offset + length > self._path.stat().st_size:
            raise UnreadableLog(f"{name[:100]} ends beyond the file: it was cut off")


def _sampled(name: str, array: NDArray[Any], *, is_bf16: bool) -> Values:
    columns = array.shape[-1]
    matrix = array.reshape(-1, columns)
    every = -(-matrix.size // MOST_ELEMENTS)
    if every == 1:
        return Values(name, _float32(matrix, is_bf16=is_bf16))
    amax = _amax(matrix, is_bf16=is_bf16) if matrix.size <= MOST_SCANNED else None
    rows = len(matrix)
    most = max(MOST_ELEMENTS // columns, 1)
    together = next((n for n in (128, 16) if most >= 4 * n), 1)  # blocks of several rows stay whole
    starts = np.linspace(0, rows - together, max(most // together, 1)).astype(np.int64)
    chosen = np.unique((starts[:, None] // together * together + np.arange(together)).ravel())
    part = matrix[chosen, :MOST_ELEMENTS] if columns > MOST_ELEMENTS else matrix[chosen]
    return Values(name, _float32(part, is_bf16=is_bf16), every, amax)


def _float32(matrix: NDArray[Any], *, is_bf16: bool) -> NDArray[np.float32]:
    if is_bf16:
        return (np.array(matrix, np.uint32) << np.uint32(16)).view(np.float32)
    with np.errstate(over="ignore"):
        return np.array(matrix, np.float32)


def _amax(matrix: NDArray[Any], *, is_bf16: bool) -> float:
    """Largest finite absolute value, read in pieces."""
    rows = max(MOST_ELEMENTS // matrix.shape[1], 1)
    largest = 0.0
    for first in range(0, len(matrix), rows):
        size = np.abs(_float32(matrix[first : first + rows], is_bf16=is_bf16))
        largest = max(largest, float(size.max(where=np.isfinite(size), initial=0.0)))
    return largest
