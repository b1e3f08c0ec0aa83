"""Tacotron 2 and WaveGlow: ``Train loss 120 0.531200 Grad Norm 1.210000 1.21s/it``, ``Validation loss 500:
0.6120``;
``120:<tab>-4.210000000``. WaveGlow's loss is a negative log-likelihood and may be below zero.
"""

from __future__ import annotations

import re

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat, SingleLines
from floatscope_diagnostics.readers.numbers import NUMBER, to_float
from floatscope_diagnostics.readers.piece import EVAL, Piece

_TRAIN = re.compile(
    rf"^\s{{0,4}}Train loss (\d{{1,12}}) ({NUMBER}) Grad Norm ({NUMBER}) ([\d.]{{1,20}})s/it",
    re.I,
)
_EVAL = re.compile(rf"^\s{{0,4}}Validation loss (\d{{1,12}}): ({NUMBER})", re.I)
_BARE = re.compile(r"^(\d{1,12}):\t([-+]?\d{1,12}\.\d{9}|[-+]?nan|[-+]?inf)\s{0,4}$")

MIN_BARE_LINES = 4  # nine decimals behind a tab, so many times, are no accident


def certainty(head: Head) -> float:
    """Sure of Tacotron's line; WaveGlow's are bare numbers in one fixed form."""
    if head.hits(_TRAIN):
        return 0.95
    return 0.8 if head.hits(_BARE) >= MIN_BARE_LINES else 0.0


def read(text: str) -> Piece | None:
    """An iteration or a validation."""
    at = _TRAIN.match(text)
    if at:
        found = {"loss": at[2], "grad_norm": at[3], "step_time_s": at[4]}
        values = {k: v for k, v in ((k, to_float(t)) for k, t in found.items()) if v is not None}
        return Piece(values, step=int(at[1]))
    at = _EVAL.match(text) or _BARE.match(text)
    value = to_float(at[2]) if at else None
    if at is None or value is None:
        return None
    if at.re is _EVAL:
        return Piece({"eval_loss": value}, step=int(at[1]), kind=EVAL)
    return Piece({"loss": value}, step=int(at[1]))


FORMAT = LineFormat("tacotron2", "Tacotron 2 / WaveGlow output", certainty, lambda: SingleLines(read))
