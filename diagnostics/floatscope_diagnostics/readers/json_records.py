"""Reads JSON lists of records: Chainer's ``log``, exported tables, histories in the long form (one object a
point, ``{"metric": "loss", "step": 1, "value": 2.5}``), and TensorBoard's JSON export."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from floatscope_diagnostics.readers.assemble import assemble
from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.json_document import load
from floatscope_diagnostics.readers.json_lines import numbers
from floatscope_diagnostics.readers.names import guess, normal
from floatscope_diagnostics.readers.numbers import whole
from floatscope_diagnostics.readers.opening import Opened
from floatscope_diagnostics.readers.piece import EVAL, TRAIN, Piece
from floatscope_diagnostics.readers.records import Records
from floatscope_diagnostics.readers.run_log import RunLog, Tally, UnreadableLog

FORMAT = "json_records"
_START = re.compile(rb"\s*\[\s*[\[{]")
_UNIX_FROM = 1e9  # a time below it counts seconds since the start, one beyond the next bound milliseconds
_MILLISECONDS_FROM = 1e11
_TRIPLE = ("time", "step", "value")
_CURVE_KEYS = ("metric", "metricName", "metric_name", "name", "key", "tag")  # of the long form
_VALUE_KEYS = ("value", "metricValue", "metric_value")
_MAX_SHAPES = 4_096  # different sets of names for which a guess is kept


def certainty(head: Head) -> float:
    """Sure of a list that begins with an object or a list."""
    return 0.9 if _START.match(head.first.removeprefix(b"\xef\xbb\xbf")) else 0.0


def read(opened: Opened) -> Iterator[RunLog]:
    """The runs of the list. Raises UnreadableLog if no entry is a record of numbers."""
    value = load(opened)
    yield from read_list(value if isinstance(value, list) else (), opened)


def read_list(entries: Sequence[object], opened: Opened) -> Iterator[RunLog]:
    """The runs of records that stand in a list of a document."""
    tally = Tally()
    records = Records()
    table = _Table(tally, opened.mapping)
    for number, entry in enumerate(entries, start=1):
        named = _named(entry, opened.name)
        piece = None if named is None else table.piece(named)
        if piece is None:
            tally.skip(number, f"entry is {type(entry).__name__} without numbers, expected an object")
        else:
            records.add(number, piece)
    if not records.count:
        raise UnreadableLog(
            'is a JSON list without records: expected objects with "step" or "epoch" and "loss". '
            + (tally.first_skipped or "")
        )
    yield from assemble(records, tally, FORMAT)


def _named(entry: object, path: str) -> Mapping[str, Any] | None:
    """The entry as an object that names its values. A list of three numbers is TensorBoard's [time, step,
    value], of the curve that the file is named after."""
    if isinstance(entry, Mapping):
        return _long(entry)
    if not isinstance(entry, list) or len(entry) != len(_TRIPLE):
        return None
    out = dict(zip(_TRIPLE, entry, strict=True))
    if "loss" in path.rsplit("/", 1)[-1].lower():
        out["loss"] = out.pop("value")
    return out


def _long(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """An entry of the long form with its value under the curve's name; any other as it is."""
    curve = next((k for k in _CURVE_KEYS if isinstance(entry.get(k), str)), None)
    value = next((k for k in _VALUE_KEYS if k in entry), None)
    if curve is None or value is None:
        return entry
    found = entry[value]
    if isinstance(found, str):  # Comet exports numbers as text
        try:
            found = float(found)
        except ValueError:
            found = None
    rest = {k: v for k, v in entry.items() if k not in (curve, value)}
    return {**rest, str(entry[curve])[:200]: found}


@dataclass
class _Table:
    """Turns records into pieces. given: the user's names."""

    tally: Tally
    given: Mapping[str, str]
    _known: dict[tuple[str, ...], dict[str, str]] = field(default_factory=dict)

    def piece(self, entry: Mapping[str, Any]) -> Piece | None:
        """A record under our names; None if it holds no number beside its place."""
        found = numbers(entry)
        mapping = self._mapping(tuple(found))
        values = {mapping.get(k, k): v for k, v in found.items()}
        step = _position(values.pop("step", None))
        rank = _position(values.pop("rank", None))
        epoch = values.pop("epoch", None)
        time = values.pop("time", None)
        if time is not None and time >= _UNIX_FROM:
            values["time"] = time / 1000.0 if time >= _MILLISECONDS_FROM else time
        elif time is not None:
            values["elapsed_s"] = time
        if not values.keys() - {"time", "elapsed_s"}:
            return None
        kind = EVAL if "loss" not in values and "eval_loss" in values else TRAIN
        return Piece(values, step=step, epoch=epoch, rank=rank, kind=kind)

    def _mapping(self, names: tuple[str, ...]) -> dict[str, str]:
        known = self._known.get(names)
        if known is None:
            epochs = {n: "epoch" for n in names if normal(n) in ("epoch", "epochs")}
            known = {**epochs, **guess(names), **self.given}
            self.tally.mapping.update({k: v for k, v in known.items() if k != v and k in names})
            if len(self._known) < _MAX_SHAPES:
                self._known[names] = known
        return known


def _position(number: float | None) -> int | None:
    """A step or rank that can be one."""
    found = whole(number)
    return found if found is not None and found >= 0 else None
