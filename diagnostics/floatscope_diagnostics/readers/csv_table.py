"""Reads a table: comma, semicolon, tab or blanks between fields, with a header line, or two columns of steps
and losses without one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from floatscope.protocol.batch import Batch
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.readers.columns_plan import Plan, plan_of
from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_blocks import line_blocks
from floatscope_diagnostics.readers.names import exported, guess
from floatscope_diagnostics.readers.number_table import (
    BLOCK_BYTES,
    SMALL_BYTES,
    fields_of,
    number_in,
    read_lines,
    read_plain,
)
from floatscope_diagnostics.readers.opening import PEEK_BYTES, Opened
from floatscope_diagnostics.readers.run_log import RunLog, Tally, UnreadableLog
from floatscope_diagnostics.readers.table_rows import TableRows

FORMAT = "csv"
DELIMITERS = ",;\t"
MAX_COLUMNS = 20_000
MAX_HEADER_BYTES = 4 << 20  # 200 a column
SURE, LIKELY = 0.9, 0.7  # known names in the header; a table of numbers under other names
_LOOK_LINES = 12
_BLANK = b"\xef\xbb\xbf \t\r\n\x00"
_KNOWN = {"step", "loss", "eval_loss", "grad_norm"}


@dataclass(frozen=True)
class Layout:
    """delimiter: None for any blanks.  names: of the columns.  header: whether the first line holds them."""

    delimiter: str | None
    names: tuple[str, ...]
    header: bool
    certainty: float


def certainty(head: Head) -> float:
    """How sure the first lines are a table."""
    layout = _layout(_first_lines(head.first, _LOOK_LINES))
    return 0.0 if layout is None else layout.certainty


def read(opened: Opened) -> Iterator[RunLog]:
    """The one run of the table."""
    tally = Tally()
    yield RunLog(RunInfo(), FORMAT, _batches(opened, tally), tally)


def _first_lines(data: bytes, count: int) -> list[str]:
    """The first lines that are not blank; one that is cut off at the end counts only if it is alone."""
    lines = [x.rstrip("\r") for x in data.decode("utf-8", "replace").lstrip("\ufeff").split("\n")]
    if len(lines) > 1 and len(data) >= PEEK_BYTES:
        lines.pop()
    return [x for x in lines if x.strip()][:count]


def _layout(lines: list[str]) -> Layout | None:
    if not lines:
        return None
    first = lines[0].lstrip("# ") if lines[0].startswith("#") else lines[0]
    best = max(DELIMITERS, key=first.count)
    delimiter = best if first.count(best) else None
    names = fields_of(first, delimiter)
    if names is None or (delimiter is None and len(names) < 2):
        return None
    names = [n.strip().lstrip("\ufeff") for n in names]
    below = [fields_of(x, delimiter) or [] for x in lines[1:]]
    fitting = [row for row in below if len(row) == len(names)]
    if all(number_in(n) is not None for n in names):
        return _bare(names, fitting, delimiter) if len(fitting) == len(below) else None
    shown = exported(names)[0]
    known = bool(_KNOWN & set(guess([shown.get(n, n) for n in names]).values()))
    numbers = sum(number_in(x) is not None for row in fitting for x in row)
    texts = sum(bool(x.strip()) for row in fitting for x in row) - numbers
    table = len(fitting) >= 2 and 2 * len(fitting) > len(below) and numbers > 2 * texts and len(names) > 1
    if known and (delimiter is not None or (table and texts == 0 and len(fitting) == len(below))):
        return Layout(delimiter, tuple(names), True, SURE)
    if table and delimiter is not None:
        return Layout(delimiter, tuple(names), True, LIKELY)
    return None


def _bare(names: list[str], rows: list[list[str]], delimiter: str | None) -> Layout | None:
    """Two columns of numbers, the first of them whole and rising: step and loss. Others are not guessed."""
    if len(names) != 2 or len(rows) < 2:
        return None
    steps = [number_in(row[0]) for row in (names, *rows)]
    known = [s for s in steps if s is not None and s >= 0 and s == s // 1]
    if len(known) < len(steps) or any(a >= b for a, b in pairwise(known)):
        return None
    return Layout(delimiter, ("step", "loss"), False, LIKELY)


def _batches(opened: Opened, tally: Tally) -> Iterator[tuple[int, Batch]]:
    head = _with_header(opened)
    lines = _first_lines(head, _LOOK_LINES)
    layout = _layout(lines) or _forced(lines)
    if len(layout.names) > MAX_COLUMNS:
        raise UnreadableLog(f"has {len(layout.names):,} columns; at most {MAX_COLUMNS:,} are read")
    rows = TableRows(_plan(layout, opened.mapping, head, tally), tally)
    above = layout.header
    columns = len(layout.names)
    large = len(opened.peek) == PEEK_BYTES
    for line, data in line_blocks(opened, BLOCK_BYTES):
        if above:
            found, line, data = _below_header(line, data)
            above = not found
        table = read_plain(data, layout.delimiter, columns, large=large and len(data) > SMALL_BYTES)
        if table is None or not rows.sound(table):
            table = read_lines(data, line, layout.delimiter, columns, tally)
        yield from rows.take(table)
    yield from rows.flush()
    if rows.count == 0:
        raise UnreadableLog("has a header but no row with numbers under it. " + (tally.first_skipped or ""))


def _with_header(opened: Opened) -> bytes:
    """The first bytes, with at least one whole line. Raises UnreadableLog if that is absurdly long."""
    head = opened.peek
    if len(head) < PEEK_BYTES or b"\n" in head.lstrip(_BLANK):
        return head
    head = opened.look(MAX_HEADER_BYTES)
    if len(head) >= MAX_HEADER_BYTES and b"\n" not in head.lstrip(_BLANK):
        raise UnreadableLog(
            f"has a header line longer than {MAX_HEADER_BYTES >> 20} MiB; "
            f"at most {MAX_COLUMNS:,} columns are read"
        )
    return head


def _forced(lines: list[str]) -> Layout:
    """The first line as a header, where the user says that it is one."""
    text = lines[0] if lines else ""
    best = max(DELIMITERS, key=text.count)
    names = fields_of(text, best if text.count(best) else ",")
    if names is None:
        raise UnreadableLog("has a header with a field of over 131,072 characters")
    return Layout(best if text.count(best) else ",", tuple(n.strip() for n in names), True, 0.0)


def _plan(layout: Layout, given: Mapping[str, str], head: bytes, tally: Tally) -> Plan:
    plan = plan_of(layout.names, given, tally)
    if not layout.header:
        tally.note("two columns without a header: read as step and loss")
    if plan.step is not None:
        return plan
    if plan.epoch is not None and _counts_up(layout, plan.epoch, head):
        tally.note("no step column: the epoch is used")
        return plan
    tally.note("no step column: the row number is used")
    return Plan(None, plan.time, plan.rank, None, plan.scalars, plan.sums)


def _counts_up(layout: Layout, column: int, data: bytes) -> bool:
    """Whether the column holds another, higher whole number in each of the first rows."""
    sample = data[: data.rfind(b"\n") + 1] if len(data) >= PEEK_BYTES else data
    below = _below_header(1, sample)[2] if layout.header else sample
    table = read_lines(below, 1, layout.delimiter, len(layout.names), Tally())
    here = table.present[:, column]
    values = table.values[here, column]
    whole = len(values) > 0 and bool((np.isfinite(values) & (values == np.floor(values))).all())
    return whole and bool(here.all()) and bool((values >= 0).all()) and bool((np.diff(values) > 0).all())


def _below_header(line: int, data: bytes) -> tuple[bool, int, bytes]:
    """Whether there is a line that is not blank, number of the line behind it, and the data from there."""
    while data:
        first, _, data = data.partition(b"\n")
        line += 1
        if first.strip(_BLANK):
            return True, line, data
    return False, line, data
