"""Chooses the reader of an input by its content."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import BinaryIO

from floatscope.protocol.batch import Batch
from floatscope_diagnostics.readers import (
    csv_table,
    flight_recorder,
    floatscope_jsonl,
    json_records,
    json_series,
    lines,
    mlflow_database,
    mlflow_files,
    te_debug,
    tensorboard,
    trainer_state,
    wandb_offline,
)
from floatscope_diagnostics.readers.choosing import BRIEF_BYTES, SURE, Reader, choose, surest
from floatscope_diagnostics.readers.falling_steps import ascending
from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat
from floatscope_diagnostics.readers.line_reader import read_lines
from floatscope_diagnostics.readers.opening import Opened, open_log
from floatscope_diagnostics.readers.run_log import RunLog, Tally, UnreadableLog


def readers() -> tuple[Reader, ...]:
    """All formats; of two equally sure ones the first is taken."""
    return (*_documents(), *(_line_reader(f) for f in line_formats()))


@cache
def line_formats() -> tuple[LineFormat, ...]:
    """The formats of ``lines``, by name."""
    found = []
    for module in pkgutil.iter_modules(lines.__path__):
        loaded = importlib.import_module(f"{lines.__name__}.{module.name}")
        if hasattr(loaded, "FORMAT"):
            found.append(loaded.FORMAT)
    return tuple(sorted(found, key=lambda f: f.name))


def _documents() -> tuple[Reader, ...]:
    return (
        Reader(
            "floatscope",
            "JSON lines, or floatscope JSONL",
            _certain(floatscope_jsonl.looks_like),
            floatscope_jsonl.read,
        ),
        Reader(
            "hf_trainer_state",
            "Hugging Face trainer_state.json",
            _certain(trainer_state.looks_like),
            trainer_state.read,
        ),
        Reader(
            "flight_recorder",
            "floatscope flight recorder",
            flight_recorder.certainty,
            flight_recorder.read,
        ),
        Reader("tensorboard", "TensorBoard event file", tensorboard.certainty, tensorboard.read),
        Reader("wandb_offline", "W&B offline run (.wandb)", wandb_offline.certainty, wandb_offline.read),
        Reader("mlflow", "MLflow metric file", mlflow_files.certainty, mlflow_files.read),
        Reader("mlflow_db", "MLflow database (SQLite)", mlflow_database.certainty, mlflow_database.read),
        Reader("te_debug", "Transformer Engine debug statistics", te_debug.certainty, te_debug.read),
        Reader("json_series", "JSON of curves", json_series.certainty, json_series.read),
        Reader("json_records", "JSON list of records", json_records.certainty, json_records.read),
        Reader("csv", "CSV or TSV with a header", csv_table.certainty, csv_table.read),
    )


def _certain(looks_like: Callable[[bytes], bool]) -> Callable[[Head], float]:
    return lambda head: 0.9 if looks_like(head.first) else 0.0


def _line_reader(line_format: LineFormat) -> Reader:
    read = partial(_read, line_format)
    return Reader(line_format.name, line_format.title, line_format.certainty, read)


def _read(line_format: LineFormat, opened: Opened) -> Iterator[RunLog]:
    return read_lines(opened, line_format)


@contextmanager
def open_runs(
    path: str,
    *,
    format_name: str | None = None,
    mapping: Mapping[str, str] | None = None,
    on_open: Callable[[BinaryIO], None] | None = None,
) -> Iterator[Iterator[RunLog]]:
    """The runs of one input, readable inside the ``with`` block. Raises UnreadableLog, also while they are
    read.

    mapping: our names of columns or curves, beyond what is guessed.  on_open: called with the raw file.
    """
    with open_log(path, on_open=on_open) as opened:
        opened.mapping = mapping or {}
        yield noted(lambda: choose(opened, readers(), format_name=format_name).read(opened), opened.notes)


def noted(read: Callable[[], Iterator[RunLog]], notes: list[str]) -> Iterator[RunLog]:
    """The runs, with steps that can be trusted; what was met while the input was read is noted at the end of
    each, or in the refusal."""
    try:
        for run in read():
            run.batches = _then_note(ascending(run.batches, run.tally), run.tally, notes)
            yield run
    except UnreadableLog as error:
        raise UnreadableLog("; ".join((str(error), *notes))) from error


def _then_note(
    batches: Iterator[tuple[int, Batch]], tally: Tally, notes: list[str]
) -> Iterator[tuple[int, Batch]]:
    yield from batches
    for note in notes:
        tally.note(note)


def claimed(path: str, *, at_least: float = SURE) -> bool:
    """Whether some format claims the file by its content, so surely."""
    try:
        with open_log(path) as opened:
            reader, sure = surest(Head(opened.peek[:BRIEF_BYTES]), readers())
            if sure < at_least:
                reader, sure = surest(Head(opened.peek, opened.later), readers())
            # Any JSON object may begin a floatscope log; one that names neither step nor loss does not.
            plain = reader.name != "floatscope" or b'"step"' in opened.peek or b"loss" in opened.peek
            return sure >= at_least and plain
    except UnreadableLog:
        return False
