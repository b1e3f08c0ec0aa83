"""Reads a table with a header line: comma, semicolon or tab separated."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import Any

from floatscope.protocol.batch import Batch
from floatscope.protocol.errors import ProtocolError
from floatscope.protocol.runinfo import RunInfo
from floatscope.protocol.strict_json import number
from floatscope_diagnostics.readers.names import guess, mapping_note
from floatscope_diagnostics.readers.opening import Opened
from floatscope_diagnostics.readers.run_log import Batcher, RunLog, Tally, UnreadableLog

FORMAT = "csv"
DELIMITERS = ",;\t"
MAX_COLUMNS = 20_000
_EMPTY = ("", "none", "null", "-", "n/a", "na")


def looks_like(head: bytes) -> bool:
    """Whether the first two lines split into the same number of fields and the first names a step or a
    loss."""
    lines = [x for x in head.decode("utf-8", "replace").splitlines()[:4] if x.strip()]
    if not lines:
        return False
    delimiter = _delimiter(lines[0])
    if delimiter is None:
        return False
    mapping = guess(_fields(lines[0], delimiter) or [])
    return bool({"step", "loss", "eval_loss", "grad_norm"} & set(mapping.values()))


def read(opened: Opened) -> Iterator[RunLog]:
    """The one run of the table."""
    tally = Tally()
    yield RunLog(RunInfo(), FORMAT, _batches(opened, tally), tally)


def _delimiter(line: str) -> str | None:
    best = max(DELIMITERS, key=line.count)
    return best if line.count(best) else None


def _fields(text: str, delimiter: str) -> list[str] | None:
    """The fields of one line; None where one is longer than the csv module takes."""
    try:
        return next(csv.reader([text], delimiter=delimiter), [])
    except csv.Error:
        return None


def _batches(opened: Opened, tally: Tally) -> Iterator[tuple[int, Batch]]:
    rows = _rows(opened)
    line, text = next(rows, (0, ""))
    delimiter = _delimiter(text) or ","
    header = _fields(text, delimiter)
    if header is None:
        raise UnreadableLog(f"has a header with a field of over {csv.field_size_limit():,} characters")
    if len(header) > MAX_COLUMNS:
        raise UnreadableLog(f"has {len(header):,} columns; at most {MAX_COLUMNS:,} are read")
    names = [h.strip().lstrip("\ufeff") for h in header]
    mapping = guess(names)
    note = mapping_note(mapping)
    if note:
        tally.note(note)
    has_step = "step" in mapping.values()
    if not has_step:
        tally.note("no step column: the row number is used")
    batcher = Batcher(tally)
    count = 0
    for line, text in rows:
        fields = _fields(text, delimiter)
        if fields is None:
            tally.skip(line, f"a field of over {csv.field_size_limit():,} characters")
            continue
        if len(fields) != len(names):
            if any(f.strip() for f in fields):
                tally.skip(line, f"{len(fields)} fields, the header has {len(names)}")
            continue
        row = _row(names, fields, mapping)
        if not has_step:
            row["step"] = count
        if row.get("step") is None:
            tally.skip(line, "no step number")
            continue
        count += 1
        yield from batcher.add(line, row)
    yield from batcher.flush()
    if count == 0:
        raise UnreadableLog("has a header but no row with numbers under it. " + (tally.first_skipped or ""))


def _rows(opened: Opened) -> Iterator[tuple[int, str]]:
    for line, raw in opened.lines():
        text = raw.replace(b"\x00", b"").decode("utf-8", "replace").rstrip("\r\n")
        if text.strip():
            yield line, text


def _row(names: list[str], fields: list[str], mapping: dict[str, str]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, text in zip(names, fields, strict=True):
        value = _number(text)
        key = mapping.get(name, name)
        if value is None or not key:
            continue
        if key in ("step", "rank"):
            if value == value and abs(value) < 2**53 and value == int(value):
                row[key] = int(value)
        elif key not in row:
            row[key] = value
    return row


def _number(text: str) -> float | None:
    """A number, or None for an empty field or text. NaN and Inf in any spelling stay what they are."""
    text = text.strip().strip('"').replace("_", "")
    if text.lower() in _EMPTY:
        return None
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return number(text, field="csv")
    except ProtocolError:
        return None
