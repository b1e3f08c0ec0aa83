"""Reads MLflow's file store: one file a metric without extension, lines ``timestamp value step``.

Format: mlflow/store/tracking/file_store.py. The timestamp is in milliseconds; old versions wrote no step.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping

from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.readers.curve_names import curve_names
from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.numbers import NUMBER, to_float, to_int
from floatscope_diagnostics.readers.opening import Opened
from floatscope_diagnostics.readers.run_log import RunLog, Tally, UnreadableLog
from floatscope_diagnostics.readers.series import Series

FORMAT = "mlflow"
_LINE = re.compile(rf"\s?(\d{{13}}) ({NUMBER})(?: (-?\d{{1,15}}))?\s?$", re.I)
_META = re.compile(r"(run_name|status): ['\"]?([^'\"\r\n]{1,200})", re.M)
_META_BYTES = 1 << 16
_STATUS = {"3": "finished", "4": "failed", "5": "failed"}  # mlflow/entities/run_status.py


def certainty(head: Head) -> float:
    """Sure where the first lines are a time in milliseconds, a number and a step."""
    lines = head.lines[:20]
    good = sum(1 for x in lines if _LINE.match(x))
    return 0.97 if lines and good >= max(1, len(lines) - 1) else 0.0


def read(opened: Opened) -> Iterator[RunLog]:
    """The run with the one metric of the file."""
    return read_parts((opened,))


def read_parts(parts: Iterable[Opened]) -> Iterator[RunLog]:
    """The run whose metric files these are. Raises UnreadableLog if none holds a value."""
    tally = Tally()
    series = Series(tally)
    info = RunInfo()
    given: Mapping[str, str] = {}
    for part in parts:
        name = _metric(part.name)
        _take(part, name, series, tally)
        given = part.mapping
        info = info if info != RunInfo() else _info(part.name)
    if not series.names:
        raise UnreadableLog(
            "holds no metric: expected lines such as 1700000000000 2.31 10. " + (tally.first_skipped or "")
        )
    mapping = curve_names(series.names, tally, given)
    yield RunLog(info, FORMAT, series.batches(mapping), tally)


def _take(part: Opened, name: str, series: Series, tally: Tally) -> None:
    rows = []
    for number, raw in part.text_lines():
        text = raw.decode("utf-8", "replace")
        match = _LINE.match(text)
        value = to_float(match[2]) if match else None
        if match is None or value is None:
            tally.skip(number, f"expected a time in milliseconds, a value and a step: {text.strip()[:80]}")
            continue
        rows.append((int(match[1]) / 1000.0, value, to_int(match[3]) if match[3] else None))
    steps = {step for _, _, step in rows}
    counted = len(rows) > 1 and steps <= {0, None}
    if counted:
        tally.note(f"{name[:60]} is logged without a step: its points are counted")
    for k, (time, value, step) in enumerate(rows):
        series.add(name, k if counted or step is None else step, value, time)


def _metric(path: str) -> str:
    """The metric's name: the file's, and the folders between ``metrics`` and it."""
    words = os.path.normpath(path).split(os.sep)
    if "metrics" in words[:-1]:
        return "/".join(words[len(words) - words[::-1].index("metrics") :])
    return words[-1] or "metric"


def _info(path: str) -> RunInfo:
    """Name and status from ``meta.yaml`` beside the folder ``metrics``, where it is there."""
    folder = os.path.dirname(os.path.abspath(path))
    while os.path.basename(folder) not in ("metrics", ""):
        folder = os.path.dirname(folder)
    try:
        with open(os.path.join(os.path.dirname(folder), "meta.yaml"), "rb") as file:
            found = dict(_META.findall(file.read(_META_BYTES).decode("utf-8", "replace")))
    except OSError:
        return RunInfo()
    return RunInfo(name=found.get("run_name"), status=_STATUS.get(found.get("status", "").strip()))
