"""PyTorch's word language model example and its many children (AWD-LSTM, Transformer-XL).

``| epoch   1 |   200/ 2983 batches | lr 20.00 | ms/batch  7.67 | loss  7.49 | ppl  1792.48``
``| epoch   1 step      200 |    200 batches | lr 0.00025 | ms/batch 65.2 | loss  7.58 | ppl  1956.3``
``| end of epoch   1 | time: 23.54s | valid loss  5.48 | valid ppl   240.64``; batches start anew every epoch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat
from floatscope_diagnostics.readers.numbers import NUMBER, to_float
from floatscope_diagnostics.readers.piece import EVAL, Piece

_TRAIN = re.compile(
    r"\|\s{0,4}epoch\s{1,8}(?P<epoch>\d{1,9})(?:\s{1,4}step\s{1,9}(?P<step>\d{1,12}))?\s{0,4}\|\s{0,9}"
    r"(?P<batch>\d{1,12})(?:/\s{0,9}(?P<batches>\d{1,12}))?\s{1,4}batches"
)
_EVAL = re.compile(
    r"\|\s{0,4}(?:end of epoch\s{1,8}(?P<epoch>\d{1,9})|Eval\s{1,9}\d{1,9} at step\s{1,9}(?P<step>\d{1,12})|"
    r"End of training)\s{0,4}\|"
)
_VALUE = re.compile(rf"([A-Za-z][\w/ ]{{0,30}}?):?\s{{1,12}}({NUMBER})\s{{0,4}}(?:\||$)", re.I)
_OURS = {
    "valid loss": "eval_loss", "test loss": "test_loss", "valid ppl": "eval_ppl", "test ppl": "test_ppl",
    "valid bpc": "eval_bpc", "test bpc": "test_bpc",
}  # fmt: skip


def certainty(head: Head) -> float:
    """Sure of a batch line."""
    return 0.95 if head.hits(_TRAIN) else 0.0


class Parser:
    """Knows the length of an epoch, so that its end has a place."""

    def __init__(self) -> None:
        self._batches: int | None = None

    def line(self, number: int, text: str) -> Iterable[Piece]:
        train = _TRAIN.search(text)
        at = train or _EVAL.search(text)
        if at is None:
            return ()
        values: dict[str, float] = {}
        for match in _VALUE.finditer(text[at.end() - 1 :].replace("|", "| ")):
            value = to_float(match[2])
            name = match[1].strip()
            if value is not None and name != "batches":
                values[_OURS.get(name.lower(), name)] = value
        if "ms/batch" in values:
            values["step_time_s"] = values.pop("ms/batch") / 1e3
        if not values:
            return ()
        step = int(at["step"]) if at["step"] else None
        if train is None:
            epoch = int(at["epoch"]) if at["epoch"] and self._batches else None
            return (
                Piece(
                    values,
                    step=step,
                    epoch=epoch,
                    batch=self._batches if epoch else None,
                    batches=self._batches if epoch else None,
                    kind=EVAL,
                ),
            )
        self._batches = int(train["batches"]) if train["batches"] else None
        batch = int(train["batch"]) if step is None else None
        return (Piece(values, step=step, epoch=int(train["epoch"]), batch=batch, batches=self._batches),)

    def end(self) -> Iterable[Piece]:
        return ()


FORMAT = LineFormat("word_lm", "PyTorch word language model", certainty, Parser)
