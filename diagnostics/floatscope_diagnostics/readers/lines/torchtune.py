"""torchtune: the bar's description, ``1|200|Loss: 1.93: 20%|## | 200/1000 [...]`` (epoch, step), and the file
of its disk logger, ``Step 200 | loss:1.93 lr:2e-05 tokens_per_second_per_gpu:1234.5``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from floatscope_diagnostics.readers.fields import fields, measured
from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import HELD, LineFormat
from floatscope_diagnostics.readers.numbers import to_float
from floatscope_diagnostics.readers.piece import Piece
from floatscope_diagnostics.readers.ranked import Ranked

_BAR = re.compile(r"^\s{0,8}(\d{1,6})\|(\d{1,12})\|Loss: ([-+\w.]{1,40}?)(?::|\s|$)")
_DISK = re.compile(r"^Step (\d{1,12}) \| (\w{1,40}:\S.{0,2000})$")
_OURS: dict[str, str | None] = {
    "loss": "loss",
    "val_loss": "eval_loss",
    "tokens_per_second_per_gpu": "tokens_per_s_per_gpu",
}
_PREFERENCE = "rewards/"


def certainty(head: Head) -> float:
    """Either kind of line."""
    return 0.95 if head.bare_hits(_BAR) or head.bare_hits(_DISK) > 1 else 0.0


class Torchtune:
    """Remembers the step: bars are drawn again and again."""

    def __init__(self) -> None:
        self._step: int | None = None

    def line(self, number: int, text: str) -> Iterable[Piece]:
        match = _BAR.match(text)
        if match is not None:
            step, loss = int(match[2]), to_float(match[3])
            if step == self._step or loss is None:
                return HELD
            self._step = step
            return (Piece({"loss": loss}, step=step),)
        match = _DISK.match(text)
        values = measured(fields(match[2], between=" "), _OURS) if match else {}
        return (Piece(values, step=int(match[1])),) if match is not None and values else ()

    def end(self) -> Iterable[Piece]:
        return ()


FORMAT = LineFormat("torchtune", "torchtune output", certainty, lambda: Ranked(Torchtune()))
