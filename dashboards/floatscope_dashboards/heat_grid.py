"""The heat map's cells, from the REST payload: decoded, grouped by block, ordered by layer, pooled to what
fits.

static/js/grid.js does the same for live data; a browser test holds the two equal.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from floatscope.protocol.names import split_tensor

NONFINITE_CODE, MISSING_CODE = 255, 254
LEVELS = 253
"""Codes 0 to 253 are finite values, evenly from lo to hi."""
MAX_ROWS = 240
"""More rows than this in a 420 px high picture are less than two pixels each; neighbours are then pooled."""
SPACER_SHARE = 0.05
"""Height of the space before a block's title, as a share of all rows."""
GAP_FACTOR = 4.0
"""As for lines: a distance of more than this many usual ones between columns is missing data."""
NAN_MARK, INF_MARK = 1, 2

BLOCKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Activations", ("input", "output")),
    ("Weights", ("weight",)),
    ("Gradients", ("grad_output", "grad_input", "grad_weight")),
)
OTHER_BLOCK = "Other"
_DIGITS = re.compile(r"([0-9]+)")
_TO_FIRST_NUMBER = re.compile(r"^.*?(?=\b[0-9]+\.)")


@dataclass(frozen=True)
class Row:
    """One row: its block, what its tick says, and the tensors pooled into it (indices into the payload)."""

    block: str
    label: str
    tensors: tuple[int, ...]


@dataclass(frozen=True)
class Grid:
    """Cells ready to colour. `rows` holds None for a spacer; `value` and `mark` have one list per row.

    `edges` are the steps between columns, one more than there are columns; `columns` says which payload
    column a column is, None for a hole. A value is None where there is none; `mark` is NAN_MARK or INF_MARK
    or None.
    """

    rows: tuple[Row | None, ...]
    edges: tuple[float, ...]
    columns: tuple[int | None, ...]
    value: tuple[tuple[float | None, ...], ...]
    mark: tuple[tuple[int | None, ...], ...]


def block_of(role: str) -> str:
    """The block of rows a tensor role belongs to."""
    return next((name for name, roles in BLOCKS if role in roles), OTHER_BLOCK)


def read_grid(payload: Mapping[str, Any], *, worst: str, order: Mapping[str, int] | None = None) -> Grid:
    """The grid of a heat map payload; a cell of a pooled row is its worst ("low" or "high"; "none" as
    "high").

    Raises ValueError naming the field when data, tensors and columns do not fit together.
    """
    tensors = [str(name) for name in payload.get("tensors", ())]
    starts = [int(step) for step in payload.get("from", ())]
    ends = [int(step) for step in payload.get("to", ())]
    if len(starts) != len(ends):
        raise ValueError(f"to: expected {len(starts)} columns as in from, got {len(ends)}")
    codes = _decode(payload.get("data", ""), rows=len(tensors), columns=len(starts))
    edges, columns = _columns(starts, ends, [at for at in range(len(starts)) if _has_data(codes, at)])
    marks = _marks(payload)
    rows = _rows(tensors, order or {})
    low, high = float(payload.get("lo") or 0.0), float(payload.get("hi") or 0.0)
    values: list[tuple[float | None, ...]] = []
    signs: list[tuple[int | None, ...]] = []
    for row in rows:
        if row is None:
            values.append((None,) * len(columns))
            signs.append((None,) * len(columns))
            continue
        cells = [None if at is None else _worst(codes, row.tensors, at, worst) for at in columns]
        values.append(tuple(_value(code, low, high) for code in cells))
        signs.append(
            tuple(
                _mark(marks, row.tensors, at) if code == NONFINITE_CODE and at is not None else None
                for code, at in zip(cells, columns, strict=True)
            )
        )
    return Grid(rows, edges, columns, tuple(values), tuple(signs))


def _decode(text: Any, *, rows: int, columns: int) -> list[bytes]:
    try:
        data = base64.b64decode(str(text), validate=True)
    except binascii.Error as error:
        raise ValueError(f"data: expected base64, {error}") from error
    if len(data) != rows * columns:
        raise ValueError(f"data: expected {rows} x {columns} = {rows * columns} bytes, got {len(data)}")
    return [data[row * columns : (row + 1) * columns] for row in range(rows)]


def _has_data(codes: Sequence[bytes], column: int) -> bool:
    return any(row[column] != MISSING_CODE for row in codes)


def _columns(
    starts: Sequence[int], ends: Sequence[int], used: Sequence[int]
) -> tuple[tuple[float, ...], tuple[int | None, ...]]:
    """Edges and payload columns. Columns without any data are left out, so that statistics sampled on every
    tenth step make no stripes; a hole that is longer than sampling explains is one column of its own."""
    if not used:
        return (), ()
    distances = sorted(starts[b] - starts[a] for a, b in pairwise(used))
    width = float(ends[used[0]] - starts[used[0]] + 1)
    usual = float(distances[len(distances) // 2]) if distances else width
    edges: list[float] = [float(starts[used[0]])]
    columns: list[int | None] = [used[0]]
    for before, index in pairwise(used):
        if starts[index] - starts[before] > GAP_FACTOR * usual:
            edges.append(starts[before] + usual)
            columns.append(None)
        edges.append(float(starts[index]))
        columns.append(index)
    edges.append(max(starts[used[-1]] + usual, float(ends[used[-1]] + 1)))
    return tuple(edges), tuple(columns)


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key with numbers by value: layer 2 before layer 10. Names are compared by code point."""
    parts = enumerate(_DIGITS.split(name))
    return tuple((1, int(part), "") if index % 2 else (0, 0, part) for index, part in parts)


def _rows(tensors: Sequence[str], order: Mapping[str, int]) -> tuple[Row | None, ...]:
    split = [split_tensor(name) for name in tensors]
    roles = [role for _, roles in BLOCKS for role in roles]
    blocks: dict[str, list[int]] = {}
    for index, (_, role) in enumerate(split):
        blocks.setdefault(block_of(role), []).append(index)
    names = [name for name, _ in BLOCKS] + [OTHER_BLOCK]
    used = [name for name in names if name in blocks]
    per_row = max(1, -(-len(tensors) // MAX_ROWS))
    spacer = max(1, -(-len(tensors) // per_row) // int(1 / SPACER_SHARE))
    rows: list[Row | None] = []
    for number, block in enumerate(used):
        indices = sorted(
            blocks[block],
            key=lambda at: (
                order.get(split[at][0], 1 << 40),
                natural_key(split[at][0]),
                roles.index(split[at][1]) if split[at][1] in roles else len(roles),
            ),
        )
        several_roles = len({split[at][1] for at in indices}) > 1
        if number:
            rows.extend([None] * spacer)
        for start in range(0, len(indices), per_row):
            group = tuple(indices[start : start + per_row])
            layer, role = split[group[0]]
            label = short_layer(layer) + (f" {role}" if several_roles and role else "")
            rows.append(Row(block, label, group))
    return tuple(rows)


def short_layer(layer: str) -> str:
    """The layer from its number on: model.layers.23.mlp.fc2 reads 23.mlp.fc2."""
    return _TO_FIRST_NUMBER.sub("", layer) or layer


def _worst(codes: Sequence[bytes], tensors: Sequence[int], column: int, worst: str) -> int:
    found = [codes[at][column] for at in tensors]
    if NONFINITE_CODE in found:
        return NONFINITE_CODE
    finite = [code for code in found if code <= LEVELS]
    if not finite:
        return MISSING_CODE
    return min(finite) if worst == "low" else max(finite)


def _value(code: int | None, low: float, high: float) -> float | None:
    return None if code is None or code > LEVELS else low + code * (high - low) / LEVELS


def _marks(payload: Mapping[str, Any]) -> dict[tuple[int, int], int]:
    marks: dict[tuple[int, int], int] = {}
    for name, mark in (("inf", INF_MARK), ("nan", NAN_MARK)):
        for row, column, count in payload.get(name, ()):
            if count:
                marks[(int(row), int(column))] = mark
    return marks


def _mark(marks: Mapping[tuple[int, int], int], tensors: Sequence[int], column: int) -> int:
    """NaN wins over Inf: it says more about what went wrong. A cell with neither count is NaN too."""
    found = {marks[(at, column)] for at in tensors if (at, column) in marks}
    return INF_MARK if found == {INF_MARK} else NAN_MARK
