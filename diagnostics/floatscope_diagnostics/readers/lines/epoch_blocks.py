"""Losses by epoch over one or several lines: ``Epoch: 1/30``, ``Train Loss: 7.3 - Train Perplexity: 1518``,
``Valid Loss: 6.5``, ``Time: 70.6s - LR: 9.9e-05``. Also ``Epoch: 01 | Train Loss: 0.5 | Val. Loss: 0.4``.

Progress bars between the blocks are passed over; "best validation loss so far" is no evaluation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import HELD, LineFormat
from floatscope_diagnostics.readers.numbers import NUMBER, to_float, to_int
from floatscope_diagnostics.readers.piece import EVAL, Piece

_EPOCH = re.compile(r"\bepoch\W{0,3}(\d{1,9})(?:\s?(?:/|of)\s?\d{1,9})?(?![\w.])", re.I)
_HEADER = re.compile(r"^\W{0,9}epoch\W{0,3}\d{1,9}", re.I)
_VALUE = re.compile(
    r"\b(train(?:ing)?|val(?:id(?:ation)?)?|test|eval)\.?[ _-](?:set )?"
    rf"([A-Za-z][A-Za-z0-9]{{0,20}})\s{{0,9}}[:=]?\s{{0,9}}({NUMBER})",
    re.I,
)
_LOSS = re.compile(
    r"\b(?:train(?:ing)?|val(?:id(?:ation)?)?|test)\.?[ _-]loss\s{0,9}[:=]?\s{0,9}[\dni+-]", re.I
)
_RATE = re.compile(rf"\b(?:lr|learning rate)\s{{0,9}}[:=]\s{{0,9}}({NUMBER})", re.I)
# "Epoch 3, Loss: 0.41, Val Loss: 0.45"; not "Dice loss: 0.2"
_BARE = re.compile(rf"(?:^|[,|;()-]|\d)\s{{0,9}}loss\s{{0,9}}[:=]\s{{0,9}}({NUMBER})", re.I)
_BAR = re.compile(r"\d{1,3}%\||\u2501")
_BEST = re.compile(r"\bbest\b|\bimproved\b|\bdecreased\b|\bpatience\b", re.I)
_STEP = re.compile(r"\b(?:step|iter\w{0,6}|batch)\W{0,3}\d", re.I)


def certainty(head: Head) -> float:
    """Fairly sure of epochs with losses of training or validation in words, unless most are of steps."""
    lines = [x for x in head.lines if not _BAR.search(x)]
    losses = sum(1 for x in lines if _LOSS.search(x) and not _STEP.search(x))
    steps = sum(1 for x in lines if "oss" in x and _STEP.search(x))
    if not losses or not any(_EPOCH.search(x) for x in lines):
        return 0.0
    return 0.6 if losses >= steps else 0.15


class Parser:
    """Remembers the epoch of the block."""

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._validated = False

    def line(self, number: int, text: str) -> Iterable[Piece]:
        if _BAR.search(text):
            return ()
        epoch = _EPOCH.search(text)
        if epoch:
            self._epoch = to_int(epoch[1])
        if _BEST.search(text) or self._epoch is None:
            return ()
        pieces = self._named(read_values(text, self._epoch))
        return pieces or (HELD if epoch and _HEADER.match(text) else ())

    def end(self) -> Iterable[Piece]:
        return ()

    def _named(self, pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
        """A test is the validation of a log that has no other."""
        self._validated = self._validated or any("eval_loss" in p.values for p in pieces)
        if self._validated:
            return pieces
        return tuple(
            replace(p, values={k.replace("test_", "eval_", 1): v for k, v in p.values.items()})
            for p in pieces
        )


def read_values(text: str, epoch: float | None) -> tuple[Piece, ...]:
    """Training and evaluation values that a line has in words."""
    train: dict[str, float] = {}
    valid: dict[str, float] = {}
    for match in _VALUE.finditer(text):
        value = to_float(match[3])
        if value is None:
            continue
        part, name = match[1].lower(), match[2].lower()
        if part.startswith("train"):
            train["loss" if name == "loss" else f"train_{name}"] = value
        elif part == "test":
            valid[f"test_{name}"] = value
        else:
            valid[f"eval_{name}"] = value
    bare = _BARE.search(_VALUE.sub(" ", text)) if "loss" not in train else None
    rate = _RATE.search(text)
    for name, hit in (("loss", bare), ("lr", rate)):
        found = to_float(hit[1]) if hit else None
        if found is not None:
            train[name] = found
    pieces = (Piece(train, epoch=epoch), Piece(valid, epoch=epoch, kind=EVAL))
    return tuple(p for p in pieces if p.values)


FORMAT = LineFormat("epoch_blocks", "losses of epochs in words", certainty, Parser)
