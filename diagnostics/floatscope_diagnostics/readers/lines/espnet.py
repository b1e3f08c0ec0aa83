"""ESPnet 2 ``train.log``.

``... INFO: 2epoch:train:12009-12640batch: iter_time=3.1e-04, ..., loss=65.1, loss_att=124.0, ...,
train_time=0.6``
``... INFO: 2epoch results: [train] ..., loss=60.0, ... [valid] loss_ctc=..., loss=70.1, ...``
A gradient norm that is not finite is not logged as a value but as a warning, and the update is left out:
``WARNING: The grad norm is nan. Skipping updating the model.``
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat
from floatscope_diagnostics.readers.pairs import EQUALS, pairs, renamed
from floatscope_diagnostics.readers.piece import EVAL, EVENT, Piece

_TRAIN = re.compile(r"\b(\d{1,9})epoch:train:(\d{1,12})-(\d{1,12})batch: ")
_RESULTS = re.compile(r"\b(\d{1,9})epoch results: ")
_PART = re.compile(r"\[(train|valid)\] ([^\[\]]{0,8000})")
_SKIPPED = re.compile(r"grad norm is (nan|-?inf)\b.{0,4}(?:Skipping|Do not) updat", re.I)
_OURS = {
    "train_time": "step_time_s", "iter_time": "data_time_s", "optim0_lr0": "lr", "lr_0": "lr", "time": None,
    "total_count": None, "gpu_max_cached_mem_gb": None,
}  # fmt: skip
_SKIP_NOTE = "ESPnet leaves an update out when the gradient norm is not finite, and says so only in a warning"


def certainty(head: Head) -> float:
    """Sure of its record lines, fairly of its warnings alone."""
    if head.hits(_TRAIN) or head.hits(_RESULTS):
        return 0.95
    return 0.6 if head.hits(_SKIPPED) else 0.0


class Parser:
    """Counts the updates left out."""

    def __init__(self) -> None:
        self._skipped = 0
        self._batches = False

    def line(self, number: int, text: str) -> Iterable[Piece]:
        skipped = _SKIPPED.search(text)
        if skipped:
            self._skipped += 1
            values = {"grad_norm": float(skipped[1]), "skipped_steps": float(self._skipped)}
            return (Piece(values, kind=EVENT, note=_SKIP_NOTE),)
        train = _TRAIN.search(text)
        if train:
            self._batches = True
            values = renamed(pairs(text[train.end() :], EQUALS), _OURS)
            return (Piece(values, epoch=int(train[1]), batch=int(train[3])),) if values else ()
        results = _RESULTS.search(text)
        return self._epoch_end(int(results[1]), text) if results else ()

    def _epoch_end(self, epoch: int, text: str) -> list[Piece]:
        out: list[Piece] = []
        for part in _PART.finditer(text):
            values = renamed(pairs(part[2], EQUALS), _OURS)
            if part[1] == "valid":
                named = {f"eval_{k}": v for k, v in values.items() if k not in ("step_time_s", "data_time_s")}
                out.append(Piece(named, epoch=epoch, kind=EVAL))
            elif not self._batches and values:
                out.append(Piece(values, epoch=epoch))
        return out

    def end(self) -> Iterable[Piece]:
        return ()


FORMAT = LineFormat("espnet", "ESPnet train.log", certainty, Parser)
