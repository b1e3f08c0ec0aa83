"""Reads W&B's offline ``.wandb`` files without the wandb package: history, name, configuration, exit code.

Messages: wandb/proto/wandb_internal.proto.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from floatscope.protocol.errors import ProtocolError
from floatscope.protocol.runinfo import RunInfo
from floatscope.protocol.strict_json import loads
from floatscope_diagnostics.readers.block_log import FILE_HEADER, records
from floatscope_diagnostics.readers.curve_names import curve_names
from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.json_lines import numbers
from floatscope_diagnostics.readers.opening import Opened
from floatscope_diagnostics.readers.protobuf_wire import WireError, fields
from floatscope_diagnostics.readers.run_log import RunLog, Tally, UnreadableLog
from floatscope_diagnostics.readers.series import Series

FORMAT = "wandb_offline"
_HISTORY, _RUN, _EXIT = 2, 17, 18  # Record
_ITEM, _HISTORY_STEP = 1, 2  # HistoryRecord
_KEY, _NESTED_KEY, _VALUE_JSON = 1, 2, 16  # HistoryItem, ConfigItem
_DISPLAY_NAME, _PROJECT, _CONFIG = 8, 3, 4  # RunRecord
_UPDATE = 1  # ConfigRecord
_EXIT_CODE = 1  # RunExitRecord
_OWN = ("_step", "_timestamp", "_runtime")  # keys that the client adds to every history record


@dataclass
class _Run:
    name: str | None = None
    project: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    exit_code: int | None = None


def certainty(head: Head) -> float:
    """Sure of W&B's file header."""
    return 1.0 if head.first.startswith(FILE_HEADER[:4]) else 0.0


def read(opened: Opened) -> Iterator[RunLog]:
    """The run of the file. Raises UnreadableLog without a number in its history."""
    tally = Tally()
    series = Series(tally)
    run = _Run()
    broken = rows = 0
    for record in records(opened):
        try:
            rows += _take(record, run, series, rows)
        except WireError:
            broken += 1
    if broken:
        tally.note(f"{broken:,} records could not be decoded and were passed over")
    if not series.names:
        raise UnreadableLog(
            "holds no history with numbers: the run ended before its first wandb.log. Its text is in "
            "files/output.log"
        )
    yield RunLog(_info(run), FORMAT, series.batches(curve_names(series.names, tally, opened.mapping)), tally)


def _take(record: bytes, run: _Run, series: Series, rows: int) -> int:
    """Adds a record; 1 if it was a row of the history."""
    for number, _, value in fields(record):
        if not isinstance(value, bytes):
            continue
        if number == _HISTORY:
            _take_history(value, series, rows)
            return 1
        if number == _RUN:
            _take_run(value, run)
        elif number == _EXIT:
            run.exit_code = next(
                (v for n, _, v in fields(value) if n == _EXIT_CODE and isinstance(v, int)), 0
            )
    return 0


def _take_history(history: bytes, series: Series, rows: int) -> None:
    found: dict[str, Any] = {}
    step: int | None = None
    for number, _, value in fields(history):
        if number == _ITEM and isinstance(value, bytes):
            key, content = _item(value)
            found[key] = content
        elif number == _HISTORY_STEP and isinstance(value, bytes):
            step = next((v for n, _, v in fields(value) if n == 1 and isinstance(v, int)), 0)
    values = numbers(found)
    at = values.get("_step")
    if at is not None and at == at and abs(at) < 2**53:
        step = int(at)
    time = values.get("_timestamp", float("nan"))
    for name, number_ in values.items():
        if name not in _OWN and not name.startswith("_wandb"):
            series.add(name, rows if step is None else step, number_, time)


def _take_run(message: bytes, run: _Run) -> None:
    for number, _, value in fields(message):
        if not isinstance(value, bytes):
            continue
        if number == _DISPLAY_NAME:
            run.name = value.decode("utf-8", "replace") or run.name
        elif number == _PROJECT:
            run.project = value.decode("utf-8", "replace") or run.project
        elif number == _CONFIG:
            for inner, _, item in fields(value):
                if inner == _UPDATE and isinstance(item, bytes):
                    key, content = _item(item)
                    if key and not key.startswith("_wandb"):
                        run.config[key] = content


def _item(message: bytes) -> tuple[str, Any]:
    """Name and value of an item; nested keys are joined with ``/``."""
    keys: list[str] = []
    content: Any = None
    for number, _, value in fields(message):
        if not isinstance(value, bytes):
            continue
        if number in (_KEY, _NESTED_KEY):
            if value:
                keys.append(value.decode("utf-8", "replace"))
        elif number == _VALUE_JSON:
            try:
                content = loads(value)
            except ProtocolError:
                content = None
    return "/".join(keys), content


def _info(run: _Run) -> RunInfo:
    """What is known of the run; a field that is unusable is left out."""
    status = None if run.exit_code is None else "finished" if run.exit_code == 0 else "failed"
    out = RunInfo()
    for given in (
        {"name": run.name},
        {"project": run.project},
        {"config": run.config},
        {"status": status, "reason": f"exit code {run.exit_code}" if status == "failed" else None},
    ):
        out = out.merged(_checked(given))
    return out


def _checked(given: Mapping[str, Any]) -> RunInfo:
    try:
        return RunInfo.from_json({k: v for k, v in given.items() if v})
    except ProtocolError:
        return RunInfo()
