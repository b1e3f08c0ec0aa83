"""A block of delimited lines as numbers, whole columns at a time where every line has its fields.

A block that is not so plain (a line with too few fields, a quoted delimiter, a stray carriage return or NUL)
is read line by line, which says where and why; both give the same numbers.
"""

from __future__ import annotations

import csv
import importlib
import io
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.readers.numbers import to_float
from floatscope_diagnostics.readers.run_log import Tally

BLOCK_BYTES = 4 << 20
SMALL_BYTES = 1 << 20  # below it the import of pandas costs more than it saves: 0.3 s against 0.03 s a MiB
_NEWLINE = 10
_NAN = ("nan", "NaN", "NAN", "Nan", "-nan", "-NaN", "-NAN", "+nan", "+NaN")


@dataclass(frozen=True)
class Table:
    """R rows of C columns.

    values: float64 [R, C], NaN where missing.  present: bool [R, C], a number stands there, NaN and Inf
    included.  lines: int64 [R], line numbers, None where nobody counted them.
    """

    values: NDArray[np.float64]
    present: NDArray[np.bool_]
    lines: NDArray[np.int64] | None


def number_in(text: str) -> float | None:
    """A number, NaN or Inf in any spelling; None for an empty field or text."""
    try:
        return float(text)
    except ValueError:
        return to_float(text)


def read_plain(data: bytes, delimiter: str | None, columns: int, *, large: bool) -> Table | None:
    """The block at once, None if it must be read line by line. delimiter: None for any blanks.

    large: whether there is so much to read that pandas pays.
    """
    if b"\x00" in data:
        return None
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n")
        if b"\r" in data:
            return None
    if delimiter is None:
        data = b"\n".join(b" ".join(line.split()) for line in data.split(b"\n"))
    data = _without_blank_lines(data)
    if not data:
        return Table(np.zeros((0, columns)), np.zeros((0, columns), bool), None)
    separator = ord(delimiter or " ")
    quoted = b'"' in data
    widths = _widths(data, separator, columns, quoted=quoted)
    if widths is None:
        return None
    if quoted:
        data = data.replace(b'"', b"")
        widths = _widths(data, separator, columns, quoted=False)
        if widths is None:
            return None
    pandas = pandas_or_none() if large else None
    parse = _by_pandas(pandas, data, separator) if pandas is not None else _by_split(data, separator, columns)
    values = np.empty(widths.shape)
    present = widths > 0
    for k, column in enumerate(parse):
        if isinstance(column, np.ndarray):
            values[:, k] = column
        else:
            found = _texts(column)
            values[:, k] = found
            present[:, k] &= ~np.isnan(found) | _spelled_nan(column)
    values[~present] = np.nan
    return Table(values, present, None)


def read_lines(data: bytes, first_line: int, delimiter: str | None, columns: int, tally: Tally) -> Table:
    """The block line by line; lines that do not have their fields are counted in the tally."""
    rows: list[list[float | None]] = []
    lines: list[int] = []
    for number, raw in enumerate(data.split(b"\n"), start=first_line):
        text = raw.replace(b"\x00", b"").decode("utf-8", "replace").rstrip("\r")
        if not text.strip():
            continue
        fields = fields_of(text, delimiter)
        if fields is None:
            tally.skip(number, f"a field of over {csv.field_size_limit():,} characters")
        elif len(fields) != columns:
            if any(f.strip() for f in fields):
                tally.skip(number, f"{len(fields)} fields, the header has {columns}")
        else:
            rows.append([number_in(f) for f in fields])
            lines.append(number)
    present = np.array([[x is not None for x in row] for row in rows], bool).reshape(len(rows), columns)
    values = np.array([[math.nan if x is None else x for x in row] for row in rows], np.float64)
    return Table(values.reshape(len(rows), columns), present, np.array(lines, np.int64))


def fields_of(text: str, delimiter: str | None) -> list[str] | None:
    """The fields of one line; None where one is longer than the csv module takes."""
    if delimiter is None:
        return text.split()
    try:
        return next(csv.reader([text], delimiter=delimiter), [])
    except csv.Error:
        return None


def _without_blank_lines(data: bytes) -> bytes:
    if not data.endswith(b"\n"):
        data += b"\n"
    if data.startswith(b"\n") or b"\n\n" in data:
        data = b"".join(line + b"\n" for line in data.split(b"\n") if line.strip())
    return data


def _widths(data: bytes, separator: int, columns: int, *, quoted: bool) -> NDArray[np.int64] | None:
    """Bytes of each field, int64 [R, C]; None if a line has another number of fields, or a field holds a
    delimiter between quotes."""
    chars = np.frombuffer(data, np.uint8)
    ends = chars == _NEWLINE
    where = np.flatnonzero(ends | (chars == separator))
    if len(where) % columns:
        return None
    last = ends[where].reshape(-1, columns)
    if not last[:, -1].all() or last[:, :-1].any():
        return None
    if quoted and (np.cumsum(chars == ord('"'))[where] % 2).any():
        return None
    widths: NDArray[np.int64] = np.diff(where, prepend=-1) - 1
    if len(widths) and int(widths.max()) > csv.field_size_limit():
        return None
    return widths.reshape(-1, columns)


@cache
def pandas_or_none() -> Any:
    """The package, or None where it is not installed."""
    try:
        return importlib.import_module("pandas")
    except ImportError:
        return None


def exact_options(pandas: Any) -> dict[str, str]:
    """What ``read_csv`` needs to read numbers as ``float`` does; since version 3 it does so by itself."""
    return {} if int(pandas.__version__.split(".")[0]) >= 3 else {"float_precision": "round_trip"}


def _by_pandas(pandas: Any, data: bytes, separator: int) -> Iterator[NDArray[np.float64] | list[str]]:
    """Each column as float64 [R], or as its texts where not all of them are numbers."""
    frame = pandas.read_csv(
        io.BytesIO(data), header=None, sep=chr(separator), quoting=csv.QUOTE_NONE, keep_default_na=False,
        na_values=["", *_NAN], low_memory=False, encoding_errors="replace", **exact_options(pandas),
    )  # fmt: skip
    for name in frame.columns:
        column = frame[name]
        if column.dtype.kind in "fiu":
            yield column.to_numpy(np.float64)
        else:
            yield ["nan" if x is None or x != x else str(x) for x in column.tolist()]


def _by_split(data: bytes, separator: int, columns: int) -> Iterator[NDArray[np.float64] | list[str]]:
    """The same without pandas."""
    mark = chr(separator)
    fields = data.decode("utf-8", "replace")[:-1].replace("\n", mark).split(mark)
    for k in range(columns):
        column = fields[k::columns]
        try:
            yield np.array(list(map(float, column)), np.float64)
        except ValueError:
            yield column


def _texts(column: Iterable[str]) -> NDArray[np.float64]:
    """The numbers among texts, NaN for all others; equal texts are looked at once."""
    known: dict[str, float] = {}
    out = []
    for text in column:
        value = known.get(text)
        if value is None:
            found = number_in(text)
            value = math.nan if found is None else found
            if len(known) < 1 << 16:
                known[text] = value
        out.append(value)
    return np.array(out, np.float64)


def _spelled_nan(column: list[str]) -> NDArray[np.bool_]:
    """Which texts spell NaN, bool [R]."""
    found = (number_in(x) if "n" in x or "N" in x or "#" in x else None for x in column)
    return np.array([x is not None and x != x for x in found], bool)
