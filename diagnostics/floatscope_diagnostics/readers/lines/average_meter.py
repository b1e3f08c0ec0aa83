"""Meters that print a value and its mean: PyTorch's ImageNet example, torchvision's references (and DETR,
MAE, DINO on a terminal), timm, Swin.

``Epoch: [0][  10/5005]  Time  0.5 ( 0.6)  Loss 7.0e+00 (7.1e+00)``
``Epoch: [0]  [  20/1251]  eta: 0:10:00  lr: 0.1  loss: 6.9 (6.95)  time: 0.5  data: 0.1``
``Train: 0 [ 100/1251 (  8%)]  Loss: 6.95 (6.94)  Time: 0.5s, 250/s  LR: 1.0e-06``
``Train: [0/300][10/1251]  eta 1:00:00 lr 0.000001  time 0.5 (0.6)  loss 6.9 (6.95)  grad_norm 1.2 (1.3)``
The first number is of now and is taken; of a test its last mean. Epochs and batches count from 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import HELD, LineFormat
from floatscope_diagnostics.readers.numbers import NUMBER, to_float
from floatscope_diagnostics.readers.piece import EVAL, Piece

_TRAIN = re.compile(
    r"\b(?:Epoch: ?\[(?P<a>\d{1,9})\]|"
    r"Train:\s{1,6}(?P<b>\d{1,9})(?:/\d{1,9}\s{1,4}\(\s{0,4}\d{1,3}%\))?|"
    r"Train: ?\[(?P<c>\d{1,9})/\d{1,9}\])"
    r"\s{0,4}\[\s{0,9}(?P<batch>\d{1,12})/(?P<batches>\d{1,12})(?:\s\(\s{0,4}\d{1,3}%\))?\]"
)
_TEST = re.compile(r"\b(?:Test|Val|Valid):?(?: \(EMA\))?:\s{0,4}\[\s{0,9}\d{1,12}/\s{0,9}\d{1,12}\]")
_VALUE = re.compile(
    rf"(?:^|[\s,;])([A-Za-z][\w@/]{{0,60}})[: ]\s{{0,6}}({NUMBER}|\d{{1,9}}\.\d{{1,9}}(?=s\b))"
    rf"s?(?:\s{{0,4}}\(\s{{0,6}}({NUMBER})\))?",
    re.I,
)
_TWO_WORDS = (
    ("Time cost", "eta"),
    ("Data time", "data"),
    ("Batch time", "time"),
    ("Forward time", "forward_time_s"),
)
_OURS = {"learning_rate": "lr", "time": "step_time_s", "data": "data_time_s", "eta": "", "max": "", "mem": ""}


def certainty(head: Head) -> float:
    """Sure of the place in brackets and a value with its mean or a rate behind it."""
    hits = sum(1 for x in head.lines if _TRAIN.search(x) and "oss" in x)
    return 0.75 if hits else 0.0


def _values(text: str, group: int) -> dict[str, float]:
    """group 2: values of now; 3: means, where printed."""
    out: dict[str, float] = {}
    for match in _VALUE.finditer(text):
        value = to_float(match[group] or match[2])
        name = _OURS.get(match[1].lower(), match[1].lower())
        if value is not None and name:
            out.setdefault(name, value)
    return out


class Parser:
    """Holds the last line of a test until the test is over."""

    def __init__(self) -> None:
        self._test: dict[str, float] = {}
        self._epoch: float | None = None

    def line(self, number: int, text: str) -> Iterable[Piece]:
        at = _TRAIN.search(text)
        if at is None:
            if not _TEST.search(text):
                return ()
            test = _values(text, 3)
            self._test = {k: v for k, v in test.items() if not k.endswith("time_s") and k != "lr"}
            return HELD
        rest = text[at.end() :].replace("\t", "  ")
        for words, name in _TWO_WORDS:
            rest = rest.replace(words, name)
        values = _values(rest, 2)
        out = self.end()
        if not values:
            return out
        self._epoch = float(at["a"] or at["b"] or at["c"])
        piece = Piece(values, epoch=self._epoch, batch=int(at["batch"]), batches=int(at["batches"]))
        return (*out, piece)

    def end(self) -> tuple[Piece, ...]:
        test, self._test = self._test, {}
        if not test:
            return ()
        return (Piece({f"eval_{k}": v for k, v in test.items()}, epoch=self._epoch, kind=EVAL),)


FORMAT = LineFormat("average_meter", "meters of torchvision, timm or the ImageNet example", certainty, Parser)
