"""Reads Hugging Face ``trainer_state.json``: the list ``log_history``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from floatscope.protocol.batch import Batch
from floatscope.protocol.errors import ProtocolError
from floatscope.protocol.runinfo import RunInfo
from floatscope.protocol.strict_json import number
from floatscope_diagnostics.readers.json_document import load
from floatscope_diagnostics.readers.names import guess
from floatscope_diagnostics.readers.opening import Opened
from floatscope_diagnostics.readers.run_log import Batcher, RunLog, Tally, UnreadableLog

FORMAT = "hf_trainer_state"
SUMMARY_KEYS = (
    "train_runtime",
    "train_samples_per_second",
)  # the last entry: averages over the run, not a step


def looks_like(head: bytes) -> bool:
    """A JSON object with ``log_history``."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    return start.startswith(b"{") and b'"log_history"' in head


def read(opened: Opened) -> Iterator[RunLog]:
    """The one run of the file. Raises UnreadableLog when it holds no steps."""
    value = load(opened)
    history = value.get("log_history") if isinstance(value, Mapping) else value
    if not isinstance(history, list) or not any(isinstance(x, Mapping) for x in history):
        raise UnreadableLog('has no steps: expected a list "log_history" of objects with "step" and "loss"')
    tally = Tally()
    yield RunLog(RunInfo(), FORMAT, _batches(history, tally, opened.mapping), tally)


def _batches(history: list[Any], tally: Tally, given: Mapping[str, str]) -> Iterator[tuple[int, Batch]]:
    rows = _merged(history, tally, given)
    batcher = Batcher(tally)
    for index, row in rows:
        yield from batcher.add(index, row)
    yield from batcher.flush()


def _merged(
    history: list[Any], tally: Tally, given: Mapping[str, str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Entries of one step (training, then evaluation) as one row."""
    held: dict[str, Any] | None = None
    at = 0
    for index, entry in enumerate(history, start=1):
        row = _row(entry, index, tally, given)
        if row is None:
            continue
        if (
            held is not None
            and held.get("step") == row.get("step")
            and not (set(held) & set(row)) - {"step", "epoch"}
        ):
            held.update(row)
            continue
        if held is not None:
            yield at, held
        held, at = row, index
    if held is not None:
        yield at, held


def _row(entry: object, index: int, tally: Tally, given: Mapping[str, str]) -> dict[str, Any] | None:
    if not isinstance(entry, Mapping):
        tally.skip(index, f"entry of log_history is {type(entry).__name__}, expected an object")
        return None
    if any(k in entry for k in SUMMARY_KEYS) or ("step" not in entry and _is_prediction(entry)):
        return None
    mapping = {**guess(str(k) for k in entry), **given}
    tally.mapping.update({k: v for k, v in mapping.items() if k != v and k in entry})
    row: dict[str, Any] = {}
    for key, value in entry.items():
        name = mapping.get(str(key), str(key))
        if name in ("step", "rank"):
            row[name] = value
            continue
        try:
            found = number(value, field=name)
        except ProtocolError:
            continue
        if found is not None:
            row[name] = found
    if "step" not in row:
        tally.skip(index, "entry without a step")
        return None
    return row


def _is_prediction(entry: Mapping[Any, Any]) -> bool:
    """Results of ``Trainer.predict``, which belong to no step."""
    return any(str(k).startswith(("predict_", "test_")) for k in entry)
