"""MXNet: ``INFO:root:Epoch[0] Batch [100]<tab>Speed: 1200.50
samples/sec<tab>accuracy=0.51<tab>cross-entropy=1.42``,
``Epoch[0] Train-accuracy=0.55`` and ``Epoch[0] Validation-cross-entropy=1.31`` at the end of an epoch.
"""

from __future__ import annotations

import re

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat, SingleLines
from floatscope_diagnostics.readers.pairs import EQUALS, pairs, renamed
from floatscope_diagnostics.readers.piece import EVAL, Piece

_BATCH = re.compile(r"\bEpoch\s?\[(\d{1,9})\],? Batch\s?\[(?:\d{1,12}-)?(\d{1,12})\]\s")
_END = re.compile(r"\bEpoch\s?\[(\d{1,9})\],? (Train|Validation)-(?=\w)")
_OURS = {
    "cross-entropy": "loss", "crossentropy": "loss", "perplexity": "perplexity", "lr": "lr", "speed": None,
    "cross_entropy": "loss", "softmaxceloss": "loss", "train_loss": "loss",
}  # fmt: skip


def certainty(head: Head) -> float:
    """Sure of a batch's line with a value."""
    hits = sum(1 for x in head.lines if (_BATCH.search(x) or _END.search(x)) and "=" in x)
    return 0.85 if hits else 0.0


def read(text: str) -> Piece | None:
    """A batch, or what is printed at the end of an epoch."""
    at = _BATCH.search(text)
    if at:
        values = renamed(pairs(text[at.end() :], EQUALS), _OURS)
        return Piece(values, epoch=int(at[1]), batch=int(at[2])) if values else None
    at = _END.search(text)
    if at is None:
        return None
    values = renamed(pairs(text[at.end() :], EQUALS), _OURS)
    part = "eval" if at[2] == "Validation" else "epoch"
    named = {f"{part}_{k}": v for k, v in values.items()}
    return Piece(named, epoch=int(at[1]), kind=EVAL) if named else None


FORMAT = LineFormat("mxnet", "MXNet log", certainty, lambda: SingleLines(read))
