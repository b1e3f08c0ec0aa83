"""Reads MLflow's SQLite store (``mlflow.db``): every run of it with its metrics.

Tables: mlflow/store/tracking/dbmodels/models.py. The file is opened read-only and taken as it is: nothing is
locked, written or recovered.
"""

from __future__ import annotations

import math
import os
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import quote

from floatscope.protocol.batch import Batch
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.readers.curve_names import curve_names
from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.opening import Opened
from floatscope_diagnostics.readers.run_log import RunLog, Tally, UnreadableLog
from floatscope_diagnostics.readers.series import Series

FORMAT = "mlflow_db"
MAX_RUNS = 1_000
MAX_POINTS = 20_000_000  # of one run; 480 MB as numbers
_MAGIC = b"SQLite format 3\x00"
_STEPS_A_CHECK = 1_000_000  # virtual machine steps between two looks at the budget
_MAX_CHECKS = 10_000  # some minutes; 20 million points take a tenth of it
_MAX_CELL_BYTES = 1 << 20
_INFINITY = 1.7976931348623157e308  # what MLflow stores for infinity
_STATUS = {"FINISHED": "finished", "FAILED": "failed", "KILLED": "failed"}
_RUNS = """SELECT r.run_uuid, r.name, e.name, r.status FROM runs r
    LEFT JOIN experiments e ON e.experiment_id = r.experiment_id
    WHERE r.run_uuid IN (SELECT DISTINCT run_uuid FROM metrics) ORDER BY r.start_time LIMIT ?"""
_POINTS = """SELECT key, step, CASE WHEN is_nan THEN NULL ELSE value END, timestamp FROM metrics
    WHERE run_uuid = ? ORDER BY timestamp, step LIMIT ?"""
_STEPLESS = """SELECT key FROM metrics WHERE run_uuid = ? GROUP BY key
    HAVING COUNT(*) > 1 AND MIN(step) = 0 AND MAX(step) = 0"""


def certainty(head: Head) -> float:
    """Sure of SQLite's file header."""
    return 1.0 if head.first.startswith(_MAGIC) else 0.0


def read(opened: Opened) -> Iterator[RunLog]:
    """The runs of the database, oldest first. Raises UnreadableLog if it is not MLflow's or damaged."""
    if not opened.plain:
        raise UnreadableLog("is a packed or piped SQLite database: unpack it and pass its file name")
    address = "file:" + quote(os.path.abspath(opened.name)) + "?mode=ro&immutable=1"
    try:
        connection = sqlite3.connect(address, uri=True, isolation_level=None)
    except sqlite3.Error as error:
        raise UnreadableLog(f"is an SQLite database that cannot be opened: {error}") from error
    try:
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        with _told():
            yield from _runs(connection, opened)
    finally:
        connection.close()


@contextmanager
def _told() -> Iterator[None]:
    """SQLite's errors as UnreadableLog; a damaged name in one makes its message a UnicodeDecodeError."""
    try:
        yield
    except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
        raise UnreadableLog(f"is an SQLite database that cannot be read: {error}") from error


def _runs(connection: sqlite3.Connection, opened: Opened) -> Iterator[RunLog]:
    connection.execute("PRAGMA trusted_schema = OFF")
    if sys.version_info >= (3, 11):
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_CELL_BYTES)
    checks = iter(range(_MAX_CHECKS))
    connection.set_progress_handler(lambda: next(checks, None) is None, _STEPS_A_CHECK)
    tables = {str(row[0]) for row in connection.execute("SELECT name FROM sqlite_master LIMIT 10000")}
    if {"tensor_table", "engine_state"} <= tables:
        raise UnreadableLog(
            "is floatscope's own database: its runs are diagnosed by the server, see floatscope serve; "
            "export a run as JSONL to diagnose it here"
        )
    if not {"metrics", "runs"} <= tables:
        raise UnreadableLog("is an SQLite database, but not MLflow's: it has no tables metrics and runs")
    if os.path.exists(opened.name + "-wal") and os.path.getsize(opened.name + "-wal"):
        opened.notes.append("the database is in use: what its -wal file holds is not read")
    rows = connection.execute(_RUNS, (MAX_RUNS + 1,)).fetchall()
    if not rows:
        raise UnreadableLog("is MLflow's database, but no run in it has a metric")
    if len(rows) > MAX_RUNS:
        opened.notes.append(f"only the first {MAX_RUNS:,} runs were read")
    for ident, name, experiment, status in rows[:MAX_RUNS]:
        tally = Tally()
        words = [str(w)[:200] for w in (experiment, name or ident) if w]
        info = RunInfo(name="/".join(words), status=_STATUS.get(str(status)))
        yield RunLog(info, FORMAT, _batches(connection, str(ident), tally, opened.mapping), tally)


def _batches(
    connection: sqlite3.Connection, ident: str, tally: Tally, given: Mapping[str, str]
) -> Iterator[tuple[int, Batch]]:
    series = Series(tally)
    with _told():
        _gather(connection, ident, tally, series)
    yield from series.batches(curve_names(series.names, tally, given))


def _gather(connection: sqlite3.Connection, ident: str, tally: Tally, series: Series) -> None:
    counted = {str(row[0]): 0 for row in connection.execute(_STEPLESS, (ident,))}
    for key in counted:
        tally.note(f"{key[:60]} is logged without a step: its points are counted")
    for taken, row in enumerate(connection.execute(_POINTS, (ident, MAX_POINTS + 1)), start=1):
        if taken > MAX_POINTS:
            tally.note(f"only the first {MAX_POINTS:,} points were read")
            break
        key, (step, value, milliseconds) = str(row[0]), row[1:]
        if not isinstance(step, int) or not isinstance(value, float | int | None):
            tally.skip(taken, f"step {str(step)[:40]!r} or value {str(value)[:40]!r} is no number")
            continue
        if key in counted:
            step = counted[key]
            counted[key] += 1
        time = milliseconds / 1000.0 if isinstance(milliseconds, int) else float("nan")
        series.add(key, step, _value(value), time)


def _value(stored: float | None) -> float:
    """The number that was logged: NaN is stored as null here, infinity as the largest float."""
    if stored is None:
        return float("nan")
    return math.copysign(math.inf, stored) if abs(stored) >= _INFINITY else float(stored)
