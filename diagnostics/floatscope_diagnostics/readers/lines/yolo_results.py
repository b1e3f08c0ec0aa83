"""YOLOv5 results without a header: 14 columns of ``results.csv`` (tabs, commas or blanks), or the older
``results.txt`` that starts ``0/299     3.34G``.

epoch, train box / obj / cls, precision, recall, mAP 0.5, mAP 0.5:0.95, val box / obj / cls, three rates
(https://github.com/ultralytics/yolov5, ``utils/loggers/__init__.py``: keys of Loggers). results.txt: epoch,
memory, box, obj, cls, total, targets, image size, P, R, mAPs, val box / obj / cls.
"""

from __future__ import annotations

import itertools
import re

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat, SingleLines
from floatscope_diagnostics.readers.numbers import to_float
from floatscope_diagnostics.readers.piece import Piece

_NEW = (
    "box_loss", "obj_loss", "cls_loss", "precision", "recall", "mAP_0.5", "mAP_0.5:0.95", "eval_box_loss",
    "eval_obj_loss", "eval_cls_loss", "lr", "lr1", "lr2",
)  # fmt: skip
_OLD = (
    "box_loss", "obj_loss", "cls_loss", "loss", "", "", "precision", "recall", "mAP_0.5", "mAP_0.5:0.95",
    "eval_box_loss", "eval_obj_loss", "eval_cls_loss",
)  # fmt: skip
_MEMORY = re.compile(r"^\s{0,20}\d{1,9}/\d{1,9}\s{1,20}[\d.]{1,12}[GM]\s")
_NOTE = (
    "no header: columns taken as those of YOLOv5's results; loss and eval_loss are the sums of box, obj "
    "and cls"
)


def certainty(head: Head) -> float:
    """Sure of rows whose epochs count up, without names above them."""
    epochs: list[int] = []
    before = ""
    for line in head.lines:
        row = _row(line)
        if row is None:
            if not epochs:
                before = line
            continue
        if not epochs and len(re.split(r"[,\s]+", before.strip())) >= len(_NEW):
            return 0.0
        epochs.append(row[0])
    rising = all(a < b for a, b in itertools.pairwise(epochs))
    return 0.95 if epochs and rising else 0.0


def _row(text: str) -> tuple[int, dict[str, float]] | None:
    old = _MEMORY.match(text) is not None
    words = re.split(r"[,\s]+", text.strip())
    names = _OLD if old else _NEW
    start = 2 if old else 1
    epoch = words[0].split("/")[0]
    if not epoch.isdigit() or len(epoch) > 9 or len(words) != start + len(names):
        return None
    found = {n: to_float(w) for n, w in zip(names, words[start:], strict=True) if n}
    values = {n: v for n, v in found.items() if v is not None}
    scores = [values.get(n, 0.0) for n in ("precision", "recall", "mAP_0.5", "mAP_0.5:0.95")]
    if len(values) < len(found) or any(not 0 <= s <= 1 for s in scores if s == s):
        return None
    return int(epoch), values


def read(text: str) -> Piece | None:
    """One epoch."""
    row = _row(text)
    if row is None:
        return None
    epoch, values = row
    sums = {
        "loss": sum(values[f"{k}_loss"] for k in ("box", "obj", "cls")),
        "eval_loss": sum(values[f"eval_{k}_loss"] for k in ("box", "obj", "cls")),
    }
    return Piece({**sums, **values}, epoch=epoch, note=_NOTE)


FORMAT = LineFormat("yolo_results", "YOLOv5 results without a header", certainty, lambda: SingleLines(read))
