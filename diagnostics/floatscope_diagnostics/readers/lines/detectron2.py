"""Detectron2, and maskrcnn-benchmark before it.

``[11/01 20:14:15 d2.utils.events]: eta: 5:41:49  iter: 379  total_loss: 1.707  ...  lr: 0.0038  max_mem:
3782M``
``... trainer INFO: eta: 1:51:14  iter: 50  time: 0.16 (0.17)  loss: 1.4451 (2.4426)  ...  lr: 0.08``, where
the first number is of the last steps and the second the mean of all. A loss that is not finite is not
logged but raises ``Loss became infinite or NaN at iteration=1234!``.
"""

from __future__ import annotations

import re

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat, SingleLines
from floatscope_diagnostics.readers.pairs import COLON, pairs, renamed
from floatscope_diagnostics.readers.piece import EVAL, Piece

_ITER = re.compile(r"\biter: (\d{1,12})\s")
_BROKEN = re.compile(r"Loss became infinite or NaN at iteration=(\d{1,12})")
_OURS = {
    "total_loss": "loss", "time": "step_time_s", "data_time": "data_time_s", "data": "data_time_s",
    "loss_scaler": "loss_scale", "eta": None, "iter": None, "last_time": None, "last_data_time": None,
}  # fmt: skip


def certainty(head: Head) -> float:
    """Sure of ``iter:`` with a loss and a rate; less without the words that Detectron begins or sums with."""
    lines = [x for x in head.lines if "loss: " in x and "lr: " in x and _ITER.search(x)]
    if lines:
        return 0.9 if any("eta: " in x or "total_loss" in x for x in lines) else 0.5
    return 0.6 if head.hits(_BROKEN) else 0.0


def read(text: str) -> Piece | None:
    """The values of one line."""
    broken = _BROKEN.search(text)
    if broken:
        return Piece({"loss": float("nan")}, step=int(broken[1]))
    at = _ITER.search(text)
    if at is None or not ("loss" in text or " time: " in text):
        return None
    values = renamed(pairs(text[at.end() :], COLON), _OURS)
    valid = {"eval_loss" if k in ("validation_loss", "val_loss") else k: v for k, v in values.items()}
    kind = EVAL if "eval_loss" in valid and "loss" not in valid else "train"
    return Piece(valid, step=int(at[1]), kind=kind) if valid else None


FORMAT = LineFormat("detectron2", "Detectron2 log", certainty, lambda: SingleLines(read))
