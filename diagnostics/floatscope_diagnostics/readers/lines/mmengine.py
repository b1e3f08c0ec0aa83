"""mmengine and mmcv text logs (mmdet, mmseg, mmocr, mmrotate, xtuner, ...), old and new.

``... - mmengine - INFO - Epoch(train)  [1][ 500/2931]  lr: 2.0e-02  eta: 0:39:15  time: 0.06  loss: 1.2``
``... - mmdet - INFO - Epoch [1][100/62598]<tab>lr: 1.000e-03, eta: 6 days, 15:22:46, ..., loss: 1.9``
``... - INFO - Iter [10100/316440]<tab>lr: ...``; ``loss`` is the sum of the heads' losses.
"""

from __future__ import annotations

import re

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat, SingleLines
from floatscope_diagnostics.readers.pairs import COLON, pairs, renamed
from floatscope_diagnostics.readers.piece import EVAL, Piece

_AT = re.compile(
    r"\b(?P<unit>Epoch|Iter)(?:\s?\((?P<mode>train|val|test)\))?\s{1,4}"
    r"(?:\[\s{0,9}(?P<epoch>\d{1,9})\]\s{0,2})?\[\s{0,9}(?P<now>\d{1,12})(?:/(?P<of>\d{1,12}))?\]"
)
_TIME = re.compile(r"\b(?:eta|time|data_time|memory|lr|base_lr): ")
_OURS = {
    "time": "step_time_s", "data_time": "data_time_s", "base_lr": "lr", "eta": None,
}  # fmt: skip
_EVAL_OURS = {"loss": "eval_loss", "time": None, "data_time": None, "eta": None, "memory": None, "lr": None}


def certainty(head: Head) -> float:
    """Sure of a line with the place in the form of mmcv and one of its fields behind it."""
    return 0.9 if any((at := _place(x)) and _TIME.search(x, at.end()) for x in head.lines) else 0.0


def _place(text: str) -> re.Match[str] | None:
    """Where the line stands; ``Epoch [3/10]`` alone is how many write by hand."""
    at = _AT.search(text)
    return at if at and (at["epoch"] or at["mode"] or at["unit"] == "Iter") else None


def read(text: str) -> Piece | None:
    """The values of a training or evaluation line."""
    at = _place(text)
    if at is None:
        return None
    rest = text[at.end() :]
    epoch = int(at["epoch"]) if at["epoch"] else None
    if at["mode"] in ("val", "test"):
        values = renamed(pairs(rest, COLON), _EVAL_OURS)
        return Piece(values, epoch=epoch, kind=EVAL) if values else None
    values = renamed(pairs(rest, COLON), _OURS)
    if not values:
        return None
    if at["unit"] == "Iter":
        return Piece(values, step=int(at["now"]))
    return Piece(values, epoch=epoch, batch=int(at["now"]), batches=int(at["of"]) if at["of"] else None)


FORMAT = LineFormat("mmengine", "mmengine / mmcv text log", certainty, lambda: SingleLines(read))
