"""Reads Hugging Face ``trainer_state.json``: the list ``log_history``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from floatscope.protocol.batch import Batch
from floatscope.protocol.errors import ProtocolError
from floatscope.protocol.json_rows import RESERVED
from floatscope.protocol.runinfo import RunInfo
from floatscope.protocol.strict_json import number
from floatscope_diagnostics.readers.json_document import load
from floatscope_diagnostics.readers.names import guess
from floatscope_diagnostics.readers.opening import Opened
from floatscope_diagnostics.readers.run_log import RunLog, Tally, UnreadableLog
from floatscope_diagnostics.readers.series import Series

FORMAT = "hf_trainer_state"
MAX_SHAPES = 4_096  # different sets of names for which a guess is kept
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
    series = Series(tally)
    names: dict[tuple[str, ...], dict[str, str]] = {}
    for index, entry in enumerate(history, start=1):
        if not isinstance(entry, Mapping):
            tally.skip(index, f"entry of log_history is {type(entry).__name__}, expected an object")
            continue
        if any(k in entry for k in SUMMARY_KEYS) or ("step" not in entry and _is_prediction(entry)):
            continue
        keys = tuple(entry)
        mapping = names.get(keys)
        if mapping is None and len(names) < MAX_SHAPES:
            mapping = names[keys] = {**guess(keys), **given}
            tally.mapping.update({k: v for k, v in mapping.items() if k != v and k in entry})
        _take(entry, index, mapping or {}, series, tally)
    if not series.names:
        raise UnreadableLog("has no entry with a step and a number. " + (tally.first_skipped or ""))
    yield from series.batches({})


def _take(
    entry: Mapping[str, Any], index: int, mapping: Mapping[str, str], series: Series, tally: Tally
) -> None:
    """Adds the numbers of an entry."""
    values: dict[str, float] = {}
    for key, raw in entry.items():
        try:
            found = number(raw, field=key)
        except ProtocolError:
            continue
        if found is not None:
            values[mapping.get(key, key)] = found
    step = values.pop("step", None)
    if step is None or not step.is_integer():
        tally.skip(index, "entry without a step" if step is None else f"step is {step}, no whole number")
        return
    for name, value in values.items():
        if name not in RESERVED:
            series.add(name, int(step), value)


def _is_prediction(entry: Mapping[Any, Any]) -> bool:
    """Results of ``Trainer.predict``, which belong to no step."""
    return any(str(k).startswith(("predict_", "test_")) for k in entry)
