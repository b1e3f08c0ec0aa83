"""Reads a JSON list of records (Chainer's ``log``, exported tables) and TensorBoard's JSON export."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from floatscope_diagnostics.readers.assemble import assemble
from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.json_document import load
from floatscope_diagnostics.readers.json_lines import numbers
from floatscope_diagnostics.readers.names import guess
from floatscope_diagnostics.readers.opening import Opened
from floatscope_diagnostics.readers.piece import EVAL, Piece
from floatscope_diagnostics.readers.records import Records
from floatscope_diagnostics.readers.run_log import RunLog, Tally, UnreadableLog

FORMAT = "json_records"
_START = re.compile(rb"\s*\[\s*[\[{]")
_UNIX_FROM = 1e9  # a time below it counts seconds since the start
_TRIPLE = ("time", "step", "value")


def certainty(head: Head) -> float:
    """Sure of a list that begins with an object or a list."""
    return 0.9 if _START.match(head.first.removeprefix(b"\xef\xbb\xbf")) else 0.0


def read(opened: Opened) -> Iterator[RunLog]:
    """The runs of the list. Raises UnreadableLog if no entry is a record of numbers."""
    value = load(opened)
    tally = Tally()
    records = Records()
    for number, entry in enumerate(value if isinstance(value, list) else (), start=1):
        piece = record(_named(entry, opened.name), tally, opened.mapping)
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
    """The entry as an object. A list of three numbers is TensorBoard's [time, step, value], of the curve that
    the file is named after."""
    if isinstance(entry, Mapping):
        return entry
    if not isinstance(entry, list) or len(entry) != len(_TRIPLE):
        return None
    out = dict(zip(_TRIPLE, entry, strict=True))
    if "loss" in path.rsplit("/", 1)[-1].lower():
        out["loss"] = out.pop("value")
    return out


def record(entry: Mapping[str, Any] | None, tally: Tally, given: Mapping[str, str]) -> Piece | None:
    """A record under our names; None if it holds no number beside its place. given: the user's names."""
    if entry is None:
        return None
    found = numbers(entry)
    mapping = {**guess(found), **given}
    tally.mapping.update({k: v for k, v in mapping.items() if k != v and k in found})
    values = {mapping.get(k, k): v for k, v in found.items()}
    step = _whole(values.pop("step", None))
    rank = _whole(values.pop("rank", None))
    epoch = values.pop("epoch", None)
    if not values.get("time", _UNIX_FROM) >= _UNIX_FROM:
        values["elapsed_s"] = values.pop("time")
    if not values:
        return None
    kind = EVAL if "loss" not in values and "eval_loss" in values else "train"
    return Piece(values, step=step, epoch=epoch, rank=rank, kind=kind)


def _whole(number: float | None) -> int | None:
    return int(number) if number is not None and number == number and 0 <= number < 2**53 else None
