"""The pieces of one text log in the order of its lines, columns instead of objects: memory follows the number
of values, not the text."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from floatscope_diagnostics.readers.piece import Piece

NONE_INT = -(2**62)  # no number given


@dataclass
class Schema:
    """All pieces with the same kind and the same names.

    order: position among all pieces.  line: line number.  step, batch, batches, rank: NONE_INT where not
    given.  epoch: NaN where not given.  values: one array a name.
    """

    kind: str
    names: tuple[str, ...]
    order: array[int] = field(default_factory=lambda: array("q"))
    line: array[int] = field(default_factory=lambda: array("q"))
    step: array[int] = field(default_factory=lambda: array("q"))
    batch: array[int] = field(default_factory=lambda: array("q"))
    batches: array[int] = field(default_factory=lambda: array("q"))
    rank: array[int] = field(default_factory=lambda: array("q"))
    epoch: array[float] = field(default_factory=lambda: array("d"))
    values: dict[str, array[float]] = field(default_factory=dict)


class Records:
    """Append-only store of pieces."""

    def __init__(self) -> None:
        self.schemas: dict[tuple[str, tuple[str, ...]], Schema] = {}
        self.notes: list[str] = []
        self.count = 0

    def add(self, line: int, piece: Piece) -> None:
        """Takes the next piece."""
        if piece.note is not None and piece.note not in self.notes and len(self.notes) < 32:
            self.notes.append(piece.note)
        names = tuple(piece.values)
        schema = self.schemas.get((piece.kind, names))
        if schema is None:
            schema = Schema(piece.kind, names, values={n: array("d") for n in names})
            self.schemas[piece.kind, names] = schema
        schema.order.append(self.count)
        schema.line.append(line)
        schema.step.append(NONE_INT if piece.step is None else piece.step)
        schema.batch.append(NONE_INT if piece.batch is None else piece.batch)
        schema.batches.append(NONE_INT if piece.batches is None else piece.batches)
        schema.rank.append(NONE_INT if piece.rank is None else piece.rank)
        schema.epoch.append(float("nan") if piece.epoch is None else piece.epoch)
        for name, value in piece.values.items():
            schema.values[name].append(value)
        self.count += 1

    def pieces(self) -> Iterator[tuple[int, Piece]]:
        """All pieces again with their line numbers, in order."""
        where: list[tuple[Schema, int] | None] = [None] * self.count
        for schema in self.schemas.values():
            for k, order in enumerate(schema.order):
                where[order] = (schema, k)
        for found in where:
            if found is not None:
                yield found[0].line[found[1]], _piece(*found)


def _piece(schema: Schema, k: int) -> Piece:
    values: Mapping[str, float] = {n: schema.values[n][k] for n in schema.names}
    epoch = schema.epoch[k]
    return Piece(
        values,
        step=_given(schema.step[k]),
        epoch=epoch if epoch == epoch else None,
        batch=_given(schema.batch[k]),
        batches=_given(schema.batches[k]),
        rank=_given(schema.rank[k]),
        kind=schema.kind,
    )


def _given(number: int) -> int | None:
    return None if number == NONE_INT else number
