"""WeTTS: ``Epoch 1 [TRAIN] progress 10/2754 loss 0.61 polyphone_loss 0.45 ... prosody_loss nan ...``.

A batch may hold no label of one task. Its loss is then nan, and so is the sum: no fault, and left out. When
every loss of a line is nan it is one. Validation ([CV]) prints every batch; its mean over the batches is
taken.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import HELD, LineFormat
from floatscope_diagnostics.readers.pairs import BLANK, pairs
from floatscope_diagnostics.readers.piece import EVAL, Piece

_LINE = re.compile(r"\bEpoch (\d{1,9}) \[(TRAIN|CV)\] progress (\d{1,12})/(\d{1,12})\s")
_MASKED = "nan of a task that has no label in the batch is left out, and the sum with it"


def certainty(head: Head) -> float:
    """Sure of a progress line."""
    return 0.95 if head.hits(_LINE) else 0.0


def _unmasked(values: dict[str, float]) -> tuple[dict[str, float], str | None]:
    """Without the masked nan, and the remark for it."""
    heads = [v for k, v in values.items() if k.endswith("_loss")]
    if not any(math.isnan(v) for v in values.values()) or not any(math.isfinite(v) for v in heads):
        return values, None
    return {k: v for k, v in values.items() if not math.isnan(v)}, _MASKED


class Parser:
    """Gathers a validation."""

    def __init__(self) -> None:
        self._valid: dict[str, list[float]] = {}
        self._epoch = 0

    def line(self, number: int, text: str) -> Iterable[Piece]:
        at = _LINE.search(text)
        if at is None:
            return ()
        values, note = _unmasked(dict(pairs(text[at.end() :], BLANK)))
        if at[2] == "CV":
            self._epoch = int(at[1])
            for name, value in values.items():
                self._valid.setdefault(name, []).append(value)
            return HELD
        piece = Piece(values, epoch=int(at[1]), batch=int(at[3]), batches=int(at[4]), note=note)
        return (*self.end(), piece)

    def end(self) -> Iterable[Piece]:
        valid, self._valid = self._valid, {}
        if not valid:
            return ()
        means = {f"eval_{name}": sum(seen) / len(seen) for name, seen in valid.items()}
        return (Piece(means, epoch=self._epoch, kind=EVAL, note="validation: mean over its batches"),)


FORMAT = LineFormat("wetts", "WeTTS progress", certainty, Parser)
