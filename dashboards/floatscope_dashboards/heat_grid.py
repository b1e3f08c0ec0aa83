"""The heat map's cells, from the REST payload: decoded, grouped by block, ordered by layer, pooled to what
fits.

static/js/grid.js does the same for live data; a browser test holds the two equal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from floatscope.protocol.names import split_tensor
from floatscope_dashboards.heat_cells import LEVELS, MISSING_CODE, NONFINITE_CODE, Cells, read_cells

MAX_ROWS = 240
"""More rows than this in a 420 px high picture are less than two pixels each; neighbours are then pooled."""
SPACER_SHARE = 0.05
"""Height of the space before a block's title, as a share of all rows."""
MAX_NAMED = 30
"""With more rows there is no room for the name of each: the number of the layer is beside the first of its
rows, the blocks' titles are beside them, and the space between blocks is thinner."""
THIN_SHARE = 0.025
GAP_FACTOR = 4.0
"""As for lines: a distance of more than this many usual ones between columns is missing data."""

BLOCKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Activations", ("input", "output")),
    ("Weights", ("weight",)),
    ("Gradients", ("grad_output", "grad_input", "grad_weight")),
)
OTHER_BLOCK = "Other"
_DIGITS = re.compile(r"([0-9]+)")
_NUMBER = re.compile(r"(?:^|[._])([0-9]+)(?=[._]|$)")
_TO_FIRST_NUMBER = re.compile(r"^.*?(?=\b[0-9]+\.)")


@dataclass(frozen=True)
class Row:
    """One row: its block, its name, the number of its first tensor's layer ("" without one), and the tensors
    pooled into it (indices into the payload)."""

    block: str
    label: str
    number: str
    tensors: tuple[int, ...]


@dataclass(frozen=True)
class Grid:
    """Cells ready to colour. `tensors` are named by `Row.tensors`; `rows` holds None for a spacer; `value`
    and `mark` have one list per row.

    `edges` are the steps between columns, one more than there are columns; `columns` says which payload
    column a column is, None for a hole. A value is None where there is none; `mark` is NAN_MARK or INF_MARK
    or None.
    """

    tensors: tuple[str, ...]
    rows: tuple[Row | None, ...]
    edges: tuple[float, ...]
    columns: tuple[int | None, ...]
    value: tuple[tuple[float | None, ...], ...]
    mark: tuple[tuple[int | None, ...], ...]


def block_of(role: str) -> str:
    """The block of rows a tensor role belongs to."""
    return next((name for name, roles in BLOCKS if role in roles), OTHER_BLOCK)


def read_grid(
    payload: Mapping[str, Any],
    *,
    worst: str,
    order: Mapping[str, int] | None = None,
    marks: Sequence[Mapping[str, Any]] = (),
) -> Grid:
    """The grid of a heat map payload; a cell of a pooled row is its worst, the "low" or the "high" one.

    Tensors without any data have no row. `marks`: see `read_cells`, which also says what raises ValueError.
    """
    cells = read_cells(payload, marks)
    used = [at for at in range(len(cells.starts)) if any(row[at] != MISSING_CODE for row in cells.codes)]
    edges, columns = _columns(cells.starts, cells.ends, used)
    rows = _rows(cells, order or {})
    values: list[tuple[float | None, ...]] = []
    signs: list[tuple[int | None, ...]] = []
    for row in rows:
        found = [
            MISSING_CODE if row is None or at is None else _worst(cells, row.tensors, at, worst)
            for at in columns
        ]
        values.append(tuple(cells.value(code) for code in found))
        signs.append(
            tuple(
                cells.kind(row.tensors, at) if row and at is not None and code == NONFINITE_CODE else None
                for code, at in zip(found, columns, strict=True)
            )
        )
    return Grid(cells.tensors, rows, edges, columns, tuple(values), tuple(signs))


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


def _rows(cells: Cells, order: Mapping[str, int]) -> tuple[Row | None, ...]:
    split = [split_tensor(name) for name in cells.tensors]
    shown = [at for at, row in enumerate(cells.codes) if any(code != MISSING_CODE for code in row)]
    roles = [role for _, roles in BLOCKS for role in roles]
    blocks: dict[str, list[int]] = {}
    for at in shown:
        blocks.setdefault(block_of(split[at][1]), []).append(at)
    names = [name for name, _ in BLOCKS] + [OTHER_BLOCK]
    used = [name for name in names if name in blocks]
    per_row = max(1, -(-len(shown) // MAX_ROWS))
    height = -(-len(shown) // per_row)
    spacer = max(1, height // int(1 / (SPACER_SHARE if height <= MAX_NAMED else THIN_SHARE)))
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
            rows.append(Row(block, label, layer_number(layer), group))
    return tuple(rows)


def is_numbered(rows: Sequence[Row | None]) -> bool:
    """Whether rows are labelled by the number of their layer."""
    return sum(row is not None for row in rows) > MAX_NAMED


def layer_number(layer: str) -> str:
    """The first number that is a part of the name: 23 of model.layers.23.mlp.fc2; "" without one."""
    found = _NUMBER.search(layer)
    return found.group(1) if found else ""


def short_layer(layer: str) -> str:
    """The layer from its number on: model.layers.23.mlp.fc2 reads 23.mlp.fc2."""
    return _TO_FIRST_NUMBER.sub("", layer) or layer


def _worst(cells: Cells, tensors: Sequence[int], column: int, worst: str) -> int:
    found = [cells.codes[at][column] for at in tensors]
    if NONFINITE_CODE in found:
        return NONFINITE_CODE
    finite = [code for code in found if code <= LEVELS]
    if not finite:
        return MISSING_CODE
    return min(finite) if worst == "low" else max(finite)
