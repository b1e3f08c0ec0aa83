"""The cells of a heat map payload, decoded, with the non-finite ones of other statistics laid over them.

A tensor with NaN in it often has a finite amax, so its headroom looks fine or is missing: where values are
not finite is told by other statistics (`heat_stats.mark_stats`), whose payloads come as `marks`.
static/js/cells.js does the same for live data; a browser test holds the two equal.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NONFINITE_CODE, MISSING_CODE = 255, 254
LEVELS = 253
"""Codes 0 to 253 are finite values, evenly from lo to hi."""
NAN_MARK, INF_MARK = 1, 2
_COUNTS: Mapping[str, int] = {"nan_count": NAN_MARK, "inf_count": INF_MARK}
"""Statistics that are themselves counts of non-finite elements: a positive one marks its cell."""


@dataclass(frozen=True)
class Cells:
    """Codes per tensor and column, and what kind of non-finite a cell of code 255 is."""

    tensors: tuple[str, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    codes: tuple[bytes, ...]
    kinds: Mapping[tuple[int, int], int]
    low: float
    high: float

    def value(self, code: int) -> float | None:
        """The value of a code; None for missing and non-finite."""
        return None if code > LEVELS else self.low + code * (self.high - self.low) / LEVELS

    def kind(self, tensors: Sequence[int], column: int) -> int:
        """NaN wins over Inf: it says more about what went wrong. A cell with neither count is NaN too."""
        found = {self.kinds[(at, column)] for at in tensors if (at, column) in self.kinds}
        return INF_MARK if found == {INF_MARK} else NAN_MARK


def read_cells(payload: Mapping[str, Any], marks: Sequence[Mapping[str, Any]] = ()) -> Cells:
    """The payload's cells. `marks` with other columns than the payload's are left out.

    Raises ValueError naming the field when data, tensors and columns do not fit together.
    """
    tensors = [str(name) for name in payload.get("tensors", ())]
    starts = [int(step) for step in payload.get("from", ())]
    ends = [int(step) for step in payload.get("to", ())]
    if len(starts) != len(ends):
        raise ValueError(f"to: expected {len(starts)} columns as in from, got {len(ends)}")
    codes = [bytearray(row) for row in _decode(payload, rows=len(tensors), columns=len(starts))]
    kinds = _sparse(payload)
    at_row = {name: row for row, name in enumerate(tensors)}
    for extra in marks:
        if [int(step) for step in extra.get("from", ())] != starts:
            continue
        for name, column, kind in _found(extra, len(starts)):
            row = at_row.setdefault(name, len(tensors))
            if row == len(tensors):
                tensors.append(name)
                codes.append(bytearray([MISSING_CODE] * len(starts)))
            codes[row][column] = NONFINITE_CODE
            kinds[row, column] = min(kind, kinds.get((row, column), kind))
    return Cells(
        tensors=tuple(tensors),
        starts=tuple(starts),
        ends=tuple(ends),
        codes=tuple(bytes(row) for row in codes),
        kinds=kinds,
        low=float(payload.get("lo") or 0.0),
        high=float(payload.get("hi") or 0.0),
    )


def _decode(payload: Mapping[str, Any], *, rows: int, columns: int) -> list[bytes]:
    try:
        data = base64.b64decode(str(payload.get("data", "")), validate=True)
    except binascii.Error as error:
        raise ValueError(f"data: expected base64, {error}") from error
    if len(data) != rows * columns:
        raise ValueError(f"data: expected {rows} x {columns} = {rows * columns} bytes, got {len(data)}")
    return [data[row * columns : (row + 1) * columns] for row in range(rows)]


def _sparse(payload: Mapping[str, Any]) -> dict[tuple[int, int], int]:
    kinds: dict[tuple[int, int], int] = {}
    for name, kind in (("inf", INF_MARK), ("nan", NAN_MARK)):
        for row, column, count in payload.get(name, ()):
            if count:
                kinds[int(row), int(column)] = kind
    return kinds


def _found(extra: Mapping[str, Any], columns: int) -> list[tuple[str, int, int]]:
    """(tensor, column, kind) of the cells that `extra` says are not finite."""
    names = [str(name) for name in extra.get("tensors", ())]
    found = [(names[row], column, kind) for (row, column), kind in sorted(_sparse(extra).items())]
    kind = _COUNTS.get(str(extra.get("stat")))
    if kind is not None:
        low, high = float(extra.get("lo") or 0.0), float(extra.get("hi") or 0.0)
        for name, row in zip(names, _decode(extra, rows=len(names), columns=columns), strict=True):
            found.extend(
                (name, column, kind)
                for column, code in enumerate(row)
                if code <= LEVELS and low + code * (high - low) / LEVELS > 0
            )
    return found
