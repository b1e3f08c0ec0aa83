"""Reads JSON documents of whole curves: columns (Keras ``history.json``, ``DataFrame.to_json``), values by
step, Megatron-LM golden values, and ClearML's exported scalars (``x`` and ``y``)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from floatscope.protocol.batch import Batch
from floatscope.protocol.errors import ProtocolError
from floatscope.protocol.runinfo import RunInfo
from floatscope.protocol.strict_json import number
from floatscope_diagnostics.readers.curve_names import curve_names
from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.json_document import load
from floatscope_diagnostics.readers.json_records import read_list
from floatscope_diagnostics.readers.names import guess
from floatscope_diagnostics.readers.opening import Opened
from floatscope_diagnostics.readers.run_log import RunLog, Tally, UnreadableLog
from floatscope_diagnostics.readers.series import Series

FORMAT = "json_series"
_FIRST_MEMBER = re.compile(rb'\s*\{\s*"(?!log_history"|run")[^"\\]{0,200}"\s*:\s*[\[{]')
_PRETTY = re.compile(rb"\s*\{[ \t]*\r?\n\s*\"")
_MEMBER = re.compile(rb'"[^"\\]{1,200}"\s*:\s*(?:\[\s*(?:\{|[-\d"])|\{\s*"[^"\\]{1,200}"\s*:)')
_GOLDEN = frozenset(("start_step", "end_step", "step_interval", "values"))
_INTEGER = re.compile(r"\d{1,15}$")
_MAX_DEPTH = 4
_MAIN = ("loss", "eval_loss", "grad_norm")
Points = dict[int, float]


def certainty(head: Head) -> float:
    """Sure of one object with a list or another object in it, if it is not one line of many."""
    text = head.first.removeprefix(b"\xef\xbb\xbf")
    first, _, rest = text.strip().partition(b"\n")
    if not first.startswith(b"{") or b'"log_history"' in text:
        return 0.0
    one_of_many = first.rstrip().endswith(b"}") and rest.lstrip().startswith(b"{")
    if one_of_many or b'"tensors"' in first or first.startswith(b'{"run"'):
        return 0.0
    if _FIRST_MEMBER.match(text):
        return 0.95
    return 0.95 if (_PRETTY.match(text) or not rest) and _MEMBER.search(text) else 0.0


def read(opened: Opened) -> Iterator[RunLog]:
    """The one run of the document. Raises UnreadableLog if it holds no curve."""
    value = load(opened)
    tally = Tally()
    curves: dict[str, Points] = {}
    if isinstance(value, Mapping):
        _find(value, "", curves, 1)
        curves = _without_wrapper(curves)
        curves = _by_step_column(curves)
    if not curves and isinstance(value, Mapping):
        entries = _longest_list(value)
        if entries:
            yield from read_list(entries, opened)
            return
    if not curves:
        raise UnreadableLog(
            "is a JSON document without a curve: expected names with lists of numbers, or with numbers by "
            'step, such as {"loss": {"1": 2.5, "2": 2.4}}'
        )
    mapping = curve_names(curves, tally, opened.mapping)
    if _is_golden(value):
        _leave_out_placeholders(curves, mapping, tally)
    yield RunLog(RunInfo(), FORMAT, _batches(curves, mapping, tally), tally)


def _find(value: Mapping[str, Any], prefix: str, curves: dict[str, Points], depth: int) -> None:
    """Collects the curves of an object and of objects in it."""
    for key, inner in value.items():
        name = prefix + str(key)
        points = _points(inner)
        if points:
            curves[name] = points
        elif isinstance(inner, Mapping) and depth < _MAX_DEPTH:
            _find(inner, name + "/", curves, depth + 1)


def _longest_list(value: Mapping[str, Any], depth: int = 1) -> list[Any]:
    """The longest list of objects in a document, such as ``{"history": [{...}, ...]}``; empty if there is
    none."""
    found: list[Any] = []
    for inner in value.values():
        if isinstance(inner, Mapping) and depth < _MAX_DEPTH:
            inner = _longest_list(inner, depth + 1)
        if isinstance(inner, list) and len(inner) > len(found) and isinstance(inner[0], Mapping):
            found = inner
    return found


def _without_wrapper(curves: dict[str, Points]) -> dict[str, Points]:
    """Names without the first part, if all have the same: it names the document, not a curve."""
    firsts = {name.partition("/")[0] for name in curves}
    named = {"loss", "eval_loss"} & set(guess(curves).values())
    if named or len(firsts) != 1 or len(curves) < 2 or not all("/" in name for name in curves):
        return curves
    return {name.partition("/")[2]: points for name, points in curves.items()}


def _points(value: object) -> Points | None:
    """The points of one curve; None if the value is none."""
    if isinstance(value, Mapping):
        if value.keys() >= _GOLDEN:
            return _golden(value)
        elif isinstance(value.get("x"), list) and isinstance(value.get("y"), list):
            return _pairs(zip(value["x"], value["y"], strict=False))
        if not isinstance(value, Mapping) or not value or not all(_INTEGER.match(str(k)) for k in value):
            return None
        return _pairs((int(k), v) for k, v in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return _pairs(enumerate(value))
    return None


def _golden(value: Mapping[str, Any]) -> Points | None:
    values = value["values"]
    if isinstance(values, list):  # the older form: evenly spaced from start_step
        start, every = value["start_step"], value["step_interval"]
        if not isinstance(start, int) or not isinstance(every, int):
            return None
        return _pairs((start + k * every, v) for k, v in enumerate(values))
    return _points(values)


def _is_golden(value: Mapping[str, Any]) -> bool:
    return any(isinstance(v, Mapping) and v.keys() >= _GOLDEN for v in value.values())


def _pairs(pairs: Any) -> Points | None:
    points: Points = {}
    for at, raw in pairs:
        try:
            step = number(at, field="step")
            found = number(raw, field="value")
        except ProtocolError:
            return None
        if step is not None and found is not None and math.isfinite(step):
            points[int(step)] = found
    return points


def _by_step_column(curves: dict[str, Points]) -> dict[str, Points]:
    """Curves over the values of the column that counts steps, if there is one: they came as columns."""
    column = next((theirs for theirs, ours in guess(curves).items() if ours == "step"), None)
    if column is None:
        return curves
    steps = curves.pop(column)
    return {
        name: {int(steps[k]): v for k, v in points.items() if k in steps and math.isfinite(steps[k])}
        for name, points in curves.items()
    }


def _batches(
    curves: Mapping[str, Points], mapping: Mapping[str, str], tally: Tally
) -> Iterator[tuple[int, Batch]]:
    series = Series(tally)
    for name, points in curves.items():
        for step, value in sorted(points.items()):
            series.add(name, step, value)
    yield from series.batches(mapping)


def _leave_out_placeholders(curves: dict[str, Points], mapping: Mapping[str, str], tally: Tally) -> None:
    """Removes the "nan" that golden values have where nothing was run or logged.

    At a step where every curve is NaN nothing was run. A step between two that ran counts only if there are
    several curves: the NaN of a single one may be the fault itself. NaN at the head means a resumed run.
    """
    ran = {s for points in curves.values() for s, v in points.items() if v == v}
    not_run = {s for points in curves.values() for s in points} - ran
    if len(curves) == 1 and ran:
        not_run = {s for s in not_run if not min(ran) < s < max(ran)}
    for name, points in curves.items():
        logged = mapping.get(name, name) in _MAIN  # of other curves NaN means: not logged at that step
        curves[name] = {s: v for s, v in points.items() if s not in not_run and (logged or v == v)}
    if not not_run:
        return
    tally.note(
        f'"nan" in every curve at {len(not_run):,} steps from {min(not_run):,} to {max(not_run):,}: not run '
        "or not logged, left out"
    )
    if ran and min(not_run) < min(ran):
        tally.note(f"the values begin at step {min(ran):,}: the run was resumed there")
        curves["resumed"] = {min(ran): 1.0}
