"""MLPerf training: ``:::MLLOG {"key": "eval_accuracy", "value": 0.71, "metadata": {"epoch_num": 3}}``.

Between them: rank prefixes (``12: ``), Python dicts (``{'global_steps': 57, 'eval_loss': 4.16, ...}``) and
DLL lines (``DLL 2023-05-07 14:58:01.04 - epoch    6 | iter   95/181 | loss  166.62 | ... | lrate
7.20e-03``). Some benchmarks log an accuracy and no loss; ``eval_accuracy`` is whatever the benchmark's
target is (for RNN-T the error rate). A run that is ``aborted`` missed its target in time, which is no fault
by itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import HELD, LineFormat
from floatscope_diagnostics.readers.numbers import to_float
from floatscope_diagnostics.readers.pairs import pairs
from floatscope_diagnostics.readers.piece import EVAL, START, Piece

_MLLOG = re.compile(r"^\s{0,8}(?:(\d{1,6}): )?:::MLLOG? (\{.{2,20000}\})\s{0,4}$")
_DLL = re.compile(
    r"\bDLL [\d-]{10} [\d:.]{8,15} - epoch\s{1,6}(\d{1,9}) \| iter\s{1,9}(\d{1,12})/(\d{1,12}) \| "
)
_DLL_VALUE = re.compile(r"\|\s([A-Za-z][\w/]{0,40})\s{1,9}([-+\w.]{1,30})(?=\s)")
_DICT = re.compile(r"\{'global_steps?': (\d{1,12}), (.{1,2000})\}")
_DICT_VALUE = re.compile(r"'(\w{1,80})': ([-+\w.]{1,40})")
_OURS = {"current_lr": "lr", "lrate": "lr", "time": "step_time_s", "data": "data_time_s", "took": ""}
_NO_LOSS = "the log holds an accuracy and no loss: a model that does not learn is not noticed"


def certainty(head: Head) -> float:
    """Sure of one MLLOG line."""
    return 0.95 if head.hits(_MLLOG) else 0.0


class Parser:
    """Joins an accuracy with the dict that names its step."""

    def __init__(self) -> None:
        self._accuracy: Piece | None = None
        self._loss = False

    def line(self, number: int, text: str) -> Iterable[Piece]:
        found = _MLLOG.match(text)
        if found:
            record = _object(found[2])
            return () if record is None else self._mllog(record, found[1])
        steps = _DICT.search(text)
        if steps:
            return self._dict(int(steps[1]), _renamed(pairs(steps[2], _DICT_VALUE)))
        dll = _DLL.search(text)
        if dll is None:
            return ()
        values = _renamed(pairs(text[dll.end() - 2 :] + " ", _DLL_VALUE))
        self._loss = self._loss or "loss" in values
        piece = Piece(values, epoch=float(dll[1]), batch=int(dll[2]), batches=int(dll[3]))
        return (*self._release(), piece) if values else self._release()

    def end(self) -> Iterable[Piece]:
        out = self._release()
        return out if self._loss else [*out, Piece(kind="event", note=_NO_LOSS)]

    def _mllog(self, record: Mapping[str, Any], rank: str | None) -> Iterable[Piece]:
        key, value, meta = record.get("key"), record.get("value"), record.get("metadata")
        at = {"rank": int(rank) if rank else None, **_place(meta if isinstance(meta, dict) else {})}
        if key == "run_start":
            return (Piece(kind=START),)
        if key == "run_stop":
            status = str(meta.get("status", "not told") if isinstance(meta, dict) else "not told")[:40]
            return (*self._release(), Piece(kind="event", note=f"MLPerf run_stop: status {status}"))
        if key in ("eval_accuracy", "eval_loss") and _number(value) is not None:
            out = self._release()
            self._loss = self._loss or key == "eval_loss"
            self._accuracy = Piece({str(key): _number(value) or 0.0}, kind=EVAL, **at)
            return out or HELD
        if key == "train_loss" and _number(value) is not None:
            self._loss = True
            return (*self._release(), Piece({"loss": _number(value) or 0.0}, **at))
        if key == "tracked_stats" and isinstance(value, dict):
            numbers = ((str(k), _number(v)) for k, v in value.items())
            values = _renamed((k, v) for k, v in numbers if v is not None)
            self._loss = self._loss or "loss" in values
            return (*self._release(), Piece(values, **at)) if values else self._release()
        return ()

    def _dict(self, step: int, values: dict[str, float]) -> Iterable[Piece]:
        held, self._accuracy = self._accuracy, None
        evals = {k: v for k, v in values.items() if k.startswith("eval")}
        train = {k: v for k, v in values.items() if k not in evals}
        self._loss = self._loss or "eval_loss" in evals or "loss" in train
        if held is not None:
            evals = {**held.values, **evals}
        out = [Piece(train, step=step)] if train else []
        return [*out, Piece(evals, step=step, kind=EVAL)] if evals else out

    def _release(self) -> list[Piece]:
        held, self._accuracy = self._accuracy, None
        return [] if held is None else [replace(held)]


def _object(text: str) -> dict[str, Any] | None:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    return to_float(value) if isinstance(value, str) else float(value)


def _place(meta: Mapping[str, Any]) -> dict[str, Any]:
    """step or epoch of a record. BERT writes the samples seen as epoch_num: no epoch has so high a number."""
    for key in ("step", "step_num", "iteration"):
        place = meta.get(key)
        step = _number(place[-1] if isinstance(place, list) and place else place)  # [epoch, step]
        if step is not None and step == step and abs(step) < 2**53:
            return {"step": int(step)}
    epoch = _number(meta.get("epoch_num", meta.get("epoch")))
    return {"epoch": epoch} if epoch is not None and 0 <= epoch < 100_000 else {}


def _renamed(found: Iterable[tuple[str, float]]) -> dict[str, float]:
    values = {_OURS.get(name, name): value for name, value in found}
    values.pop("", None)
    return values


FORMAT = LineFormat("mlperf", "MLPerf log", certainty, Parser)
