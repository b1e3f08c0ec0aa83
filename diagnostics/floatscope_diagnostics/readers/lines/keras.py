"""Keras on a terminal: ``Epoch 1/10`` and bars ``12/500 [>.....] - ETA: 1:20 - loss: 2.31 - val_loss: 2.4``.

What a bar shows is the mean since the start of its epoch. A log of one epoch is taken bar by bar; with more
epochs only the last bar of each is taken (and the first that is not finite): the means start anew with every
epoch, which would look like a saw. A callback's message may be glued to the end of a bar.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import HELD, LineFormat
from floatscope_diagnostics.readers.numbers import to_int
from floatscope_diagnostics.readers.pairs import pairs, renamed
from floatscope_diagnostics.readers.piece import EVAL, Piece

_EPOCH = re.compile(r"^\s{0,20}Epoch\s{1,4}0*(\d{1,9})(?:\s?/\s?\d{1,9})?\s{0,9}:?\s{0,9}$")
_BAR = re.compile(
    r"^\s{0,20}(?P<batch>\d{1,12})/(?P<batches>\d{1,12}|Unknown)\s{1,4}"
    r"(?:\[[=>. ]{0,80}\]|\u2501{1,80}|-\s{1,4}\d{1,9}s)"
)
_QUIET = re.compile(r"^\s{0,20}-?\s{0,4}\d{1,9}s(?:\s\d{1,9}[mu]?s/\w{1,9})?\s-\s\w{1,80}: ")
# Without a look at what follows: a message may be glued to the number.
_VALUE = re.compile(
    r"(?:- |\s)([A-Za-z][\w/-]{0,80}): ([-+]?(?:\d{1,20}(?:\.\d{0,20})?(?:e[-+]?\d{1,4})?|nan|inf))", re.I
)
_OURS = {"lr": "lr", "learning_rate": "lr", "val_loss": "eval_loss", "eta": None, "batch": None}
_ONE_EPOCH = "Keras prints the mean since the epoch's start: the curve is smoother than the loss"
_EPOCHS = "last value of each epoch taken: Keras prints the mean since the epoch's start"


def certainty(head: Head) -> float:
    """Sure of a bar or an epoch's summary with values of that spelling."""
    bars = sum(1 for x in head.lines if _BAR.match(x) and _VALUE.search(x))
    return 0.9 if bars else 0.8 if head.hits(_QUIET) and head.hits(_EPOCH) else 0.0


class Parser:
    """Holds the bars of an epoch until it ends."""

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._bars: list[Piece] = []
        self._first: list[Piece] = []
        self._several = False

    def line(self, number: int, text: str) -> Iterable[Piece]:
        text = text.replace("\b", "")
        epoch = _EPOCH.match(text)
        if epoch:
            out = self._close()
            self._epoch = int(epoch[1])
            return out or HELD
        bar = _BAR.match(text)
        if bar is None and _QUIET.match(text) is None:
            return ()
        values = renamed(pairs(text, _VALUE), _OURS)
        if not values:
            return HELD
        batch = int(bar["batch"]) if bar else None
        out = self._close() if self._starts_anew(batch) else []
        piece = Piece(values, epoch=self._epoch, batch=batch, batches=to_int(bar["batches"]) if bar else None)
        if self._bars and self._bars[-1].batch == batch:
            self._bars[-1] = piece
        else:
            self._bars.append(piece)
        return out or HELD

    def end(self) -> Iterable[Piece]:
        out = self._close()
        bars, self._first = self._first, []
        return out or [p for bar in bars for p in _split(bar, _ONE_EPOCH if len(bars) > 1 else None)]

    def _starts_anew(self, batch: int | None) -> bool:
        last = self._bars[-1].batch if self._bars else None
        return last is not None and batch is not None and batch < last

    def _close(self) -> list[Piece]:
        bars, self._bars = self._bars, []
        if not bars:
            return []
        if not self._several and not self._first:
            self._first = bars
            return []
        first, self._first = self._first, []
        self._several = True
        return [*_last(first), *_last(bars)]


def _last(bars: list[Piece]) -> list[Piece]:
    """The last bar of an epoch, before it the first that was not finite."""
    chosen = bars[-1:]
    broken = next((b for b in bars if not math.isfinite(b.values.get("loss", 0.0))), None)
    if broken is not None and broken is not chosen[0]:
        chosen = [broken, *chosen]
    return [p for bar in chosen for p in _split(bar, _EPOCHS if len(bars) > 1 else None)]


def _split(bar: Piece, note: str | None) -> list[Piece]:
    """Training and validation values of a bar apart."""
    train = {k: v for k, v in bar.values.items() if not k.startswith(("val_", "eval_"))}
    valid = {k: v for k, v in bar.values.items() if k not in train}
    at = {"epoch": bar.epoch, "batch": bar.batch, "batches": bar.batches}
    out = [Piece(train, note=note, **at)] if train else []  # type: ignore[arg-type]
    return [*out, Piece(valid, kind=EVAL, **at)] if valid else out  # type: ignore[arg-type]


FORMAT = LineFormat("keras", "Keras progress bars", certainty, Parser)
