"""The pieces of one text log in the order of its lines, as columns: memory follows the number of values, not
the text."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.readers.piece import Piece

WHERE = ("step", "epoch", "batch", "batches", "rank")
MAX_VALUES = 64_000_000  # half a GiB as float64; ten values on each of six million lines
MAX_SCHEMAS = 4_096
MAX_NAMES = 4_096
MAX_STEP = 2**53  # beyond, float64 no longer tells neighbours apart
MAX_FAILURES = 64

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]


@dataclass
class Schema:
    """All pieces with the same kind, the same names and the same positions given.

    order: position among all pieces.  line: line number.  where: one array for each position that is given
    (int64; ``epoch`` float64).  values: one array a name, float64.
    """

    kind: str
    names: tuple[str, ...]
    given: tuple[str, ...]
    order: array[int] = field(default_factory=lambda: array("q"))
    line: array[int] = field(default_factory=lambda: array("q"))
    where: dict[str, array[Any]] = field(default_factory=dict)
    values: dict[str, array[float]] = field(default_factory=dict)


class Records:
    """Append-only store of pieces.

    failures: (number of pieces before it, line number, text) of lines that say that the program failed.
    full: the line from which on nothing more was stored, None as long as there is room.
    """

    def __init__(self) -> None:
        self.schemas: dict[tuple[Any, ...], Schema] = {}
        self.notes: list[str] = []
        self.failures: list[tuple[int, int, str]] = []
        self.count = 0
        self.full: int | None = None
        self._names: set[str] = set()
        self._stored = 0

    def add(self, line: int, piece: Piece) -> bool:
        """Takes the next piece. False where there is no more room for it or its position is absurd."""
        if piece.note is not None:
            self.note(piece.note)
        step, epoch, batch, batches, rank = piece.step, piece.epoch, piece.batch, piece.batches, piece.rank
        key = (
            piece.kind,
            tuple(piece.values),
            step is None,
            epoch is None,
            batch is None,
            batches is None,
            rank is None,
        )
        schema = self.schemas.get(key)
        if schema is None:
            given = tuple(n for n in WHERE if getattr(piece, n) is not None)
            schema = self._new(key, Schema(piece.kind, key[1], given))
        if schema is None or not self._room(line, len(schema.names) + 4, 1) or not _sane(piece):
            return False
        schema.order.append(self.count)
        schema.line.append(line)
        where = schema.where
        if step is not None:
            where["step"].append(step)
        if epoch is not None:
            where["epoch"].append(epoch)
        if batch is not None:
            where["batch"].append(batch)
        if batches is not None:
            where["batches"].append(batches)
        if rank is not None:
            where["rank"].append(rank)
        values = schema.values
        for name, value in piece.values.items():
            values[name].append(value)
        self.count += 1
        return True

    def add_columns(
        self,
        kind: str,
        *,
        line: Int64,
        values: Mapping[str, Float64],
        where: Mapping[str, NDArray[Any]],
        order: Int64 | None = None,
    ) -> bool:
        """Takes N pieces of one kind at once, in the order of their lines.

        line: int64 [N].  values: float64 [N] each.  where: ``step`` and so on, [N] each, steps below 2^53.
        order: int64 [N] numbers handed out by ``reserve``; default the next N.
        """
        given = tuple(n for n in WHERE if n in where)
        key = (kind, tuple(values), *(n not in where for n in WHERE))
        schema = self.schemas.get(key)
        if schema is None:
            schema = self._new(key, Schema(kind, tuple(values), given))
        if schema is None or not self._room(int(line[0]) if len(line) else 0, len(values) + 4, len(line)):
            return False
        if order is None:
            first = self.reserve(len(line))
            order = np.arange(first, first + len(line), dtype=np.int64)
        schema.order.frombytes(np.ascontiguousarray(order, np.int64).tobytes())
        schema.line.frombytes(np.ascontiguousarray(line, np.int64).tobytes())
        for name in given:
            kept = np.float64 if name == "epoch" else np.int64
            schema.where[name].frombytes(np.ascontiguousarray(where[name], kept).tobytes())
        for name, column in values.items():
            schema.values[name].frombytes(np.ascontiguousarray(column, np.float64).tobytes())
        return True

    def reserve(self, count: int) -> int:
        """Hands out the next ``count`` positions for ``add_columns``; returns the first."""
        first = self.count
        self.count += count
        return first

    def note(self, text: str) -> None:
        if text not in self.notes and len(self.notes) < 32:
            self.notes.append(text)

    def fail(self, line: int, text: str) -> None:
        """Remembers a line that says that the program failed; of many the first and the last ones."""
        if len(self.failures) >= MAX_FAILURES:
            del self.failures[MAX_FAILURES // 2]
        self.failures.append((self.count, line, text))

    def _new(self, key: tuple[Any, ...], schema: Schema) -> Schema | None:
        new = set(schema.names) - self._names
        if len(self.schemas) >= MAX_SCHEMAS or len(self._names) + len(new) > MAX_NAMES:
            return None
        self._names |= new
        schema.where = {n: array("d" if n == "epoch" else "q") for n in schema.given}
        schema.values = {n: array("d") for n in schema.names}
        self.schemas[key] = schema
        return schema

    def _room(self, line: int, width: int, rows: int) -> bool:
        self._stored += width * rows
        if self._stored > MAX_VALUES and self.full is None:
            self.full = line
        return self.full is None


def _sane(piece: Piece) -> bool:
    numbers = (piece.step, piece.batch, piece.batches, piece.rank)
    return all(n is None or -MAX_STEP < n < MAX_STEP for n in numbers)
