"""fairseq, old and new: ``| epoch 001: 100 / 333 loss=9.8, ... num_updates=100, gnorm=2.1, loss_scale=128``,
``... | INFO | train_inner | epoch 001: 100 / 356 loss=9.4, ...``, a summary an epoch, ``| train | epoch 001 |
loss 9.8 | ...``, and ``| epoch 001 | valid on 'valid' subset | loss 9.3 | ...``; also ``--log-format json``.

The losses are in base 2. loss_scale is printed with few digits: 0 stands for a scale that fell below them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from floatscope_diagnostics.readers.fields import fields, measure
from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.json_lines import object_of
from floatscope_diagnostics.readers.line_format import LineFormat
from floatscope_diagnostics.readers.piece import EVAL, RESUME, Piece
from floatscope_diagnostics.readers.ranked import Ranked
from floatscope_diagnostics.readers.records import MAX_STEP

_INNER = re.compile(r"\| epoch (\d{1,6}):\s{0,12}\d{1,9} / \d{1,9} (?=\w{1,40}=)")
_SUMMARY = re.compile(r"\| epoch (\d{1,6}) \| ((?:valid on '([^']{1,80})' subset \| )?loss .{0,4000})$")
_JSON = re.compile(r"\| (train_inner|train|valid|test)\s{0,8}\| (\{.{2,8000}\})\s*$")
_LOADED = re.compile(r"\b[Ll]oaded checkpoint \S{1,400} \(epoch (\d{1,6}) @ (\d{1,12}) updates\)")
_OURS = {"gnorm": "grad_norm", "lr": "lr", "loss_scale": "loss_scale", "num_updates": "step"}
_LEFT_OUT = ("epoch", "update", "wall", "train_wall", "clip", "oom", "bsz", "wpb", "ups")
_VALIDATION_SETS = ("valid", "val", "dev", "validation")
BASE_2 = "fairseq prints losses in base 2"
_ROUNDED = "loss_scale is printed with few digits: 0 stands for a value below them"
_MEANS = "the loss of an epoch's summary is its mean: kept as train_epoch_loss beside the losses on the way"


def certainty(head: Head) -> float:
    """Its pipes and its words."""
    lines = head.hits(_INNER) + head.hits(_SUMMARY) + head.hits(_JSON)
    return 0.95 if lines else 0.5 if head.hits(re.compile(r"\| (?:INFO )?\| fairseq")) > 2 else 0.0


class Fairseq:
    """Remembers whether the log has losses inside of epochs."""

    def __init__(self) -> None:
        self._inner = False

    def line(self, number: int, text: str) -> Iterable[Piece]:
        match = _INNER.search(text)
        if match is not None:
            self._inner = True
            return _pieces(_numbers(fields(text[match.end() :], between=",")), epoch=float(match[1]))
        match = _SUMMARY.search(text)
        if match is not None:
            found = _numbers(fields(match[2]))
            return _pieces(
                found, epoch=float(match[1]), subset=match[3], mean=match[3] is None and self._inner
            )
        match = _JSON.search(text)
        value = object_of(match[2]) if match is not None else None
        if match is not None and value is not None:
            return self._object(match[1], _numbers({k: str(v) for k, v in value.items()}))
        match = _LOADED.search(text)
        if match is not None:
            return (Piece(step=int(match[2]), kind=RESUME, note="continues from a checkpoint"),)
        return ()

    def end(self) -> Iterable[Piece]:
        return ()

    def _object(self, kind: str, found: dict[str, float]) -> Iterable[Piece]:
        """A JSON record: names with the kind in front, epochs apart."""
        epoch = found.pop("epoch", None)
        plain = {k.removeprefix(f"{kind}_"): v for k, v in found.items()}
        self._inner |= kind == "train_inner"
        subset = kind if kind in ("valid", "test") else None
        return _pieces(plain, epoch=epoch, subset=subset, mean=kind == "train" and self._inner)


def _numbers(found: dict[str, str]) -> dict[str, float]:
    # older versions: loss=9.8 (9.9), the value and its mean; the mean in brackets is not a last word
    out = {}
    for name, word in found.items():
        value = measure(word)
        if value is not None:
            out[name.split("=")[0]] = value
    return out


def _pieces(
    found: dict[str, float], *, epoch: float | None, subset: str | None = None, mean: bool = False
) -> Iterable[Piece]:
    values = {_OURS.get(k, k): v for k, v in found.items() if k not in _LEFT_OUT}
    step = values.pop("step", None)
    at = int(step) if step is not None and abs(step) < MAX_STEP else None
    if subset is not None:
        prefix = "eval" if subset in _VALIDATION_SETS else subset
        values = {f"{prefix}_{k}": v for k, v in values.items()}
        return (Piece(values, step=at, epoch=epoch, kind=EVAL, note=BASE_2),) if values else ()
    note = _ROUNDED if values.get("loss_scale") == 0 else BASE_2
    if mean and "loss" in values:
        values = {"train_epoch_loss": values["loss"]}
        note = _MEANS
    return (Piece(values, step=at, epoch=epoch, note=note),) if values else ()


FORMAT = LineFormat("fairseq", "fairseq output", certainty, lambda: Ranked(Fairseq()))
