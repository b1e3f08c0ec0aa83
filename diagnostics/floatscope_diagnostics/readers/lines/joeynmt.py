"""Joey NMT: ``Epoch 1, Step: 100, Batch Loss: 5.230000, Batch Acc: 0.02, Tokens per Sec: 1234, Lr: 0.000300``
and ``Validation result (greedy) at epoch 1, step 1000: bleu: 1.0, loss: 4.5, ppl: 90.1``; and Sockeye:
``Epoch[0] Batch [50] ... perplexity=120.5``, ``Checkpoint [1]\tUpdates=1000 ...
Validation-perplexity=60.1``.
"""

from __future__ import annotations

import math
import re

from floatscope_diagnostics.readers.fields import fields, measured
from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat, SingleLines
from floatscope_diagnostics.readers.numbers import to_float
from floatscope_diagnostics.readers.piece import EVAL, Piece
from floatscope_diagnostics.readers.ranked import Ranked

_JOEY = re.compile(r"\bEpoch {1,8}\d{1,6},? Step: {1,12}(\d{1,12}), (Batch Loss: .{1,300})$")
_JOEY_VALID = re.compile(r"\bat epoch {1,8}\d{1,6}, step {1,12}(\d{1,12}): (.{1,400})$")
_SOCKEYE = re.compile(r"\bEpoch\[\d{1,6}\] Batch \[(\d{1,12})\]\s.{0,300}?\bperplexity=(\S{1,40})")
_SOCKEYE_VALID = re.compile(
    r"\bCheckpoint \[\d{1,6}\]\s.{0,100}?\bUpdates=(\d{1,12}).{0,600}?\bValidation-perplexity=(\S{1,40})"
)
_OURS: dict[str, str | None] = {
    "batch loss": "loss",
    "batch acc": "acc",
    "tokens per sec": "tokens_per_s",
}
_FROM_PERPLEXITY = "perplexity is printed: the loss is its logarithm"


def certainty(head: Head) -> float:
    """Their words."""
    return 0.95 if head.hits(_JOEY) or head.hits(_SOCKEYE) else 0.0


def read(text: str) -> Piece | None:
    """One line."""
    match = _JOEY.search(text)
    if match is not None:
        return Piece(measured(fields(match[2], between=", "), _OURS), step=int(match[1]))
    match = _SOCKEYE.search(text)
    if match is not None:
        return _from_perplexity("loss", match, kind="train")
    match = _SOCKEYE_VALID.search(text)
    if match is not None:
        return _from_perplexity("eval_loss", match, kind=EVAL)
    match = _JOEY_VALID.search(text)
    if match is None:
        return None
    found = measured(fields(match[2], between=", "), {"evaluation": None, "generation": None})
    return Piece({f"eval_{k}": v for k, v in found.items()}, step=int(match[1]), kind=EVAL) if found else None


def _from_perplexity(name: str, match: re.Match[str], *, kind: str) -> Piece | None:
    value = to_float(match[2])
    if value is None:
        return None
    prefix = name.removesuffix("loss")
    values = {f"{prefix}ppl": value, name: math.log(value) if value > 0 else value}
    return Piece(values, step=int(match[1]), kind=kind, note=_FROM_PERPLEXITY)


FORMAT = LineFormat(
    "joeynmt", "Joey NMT or Sockeye output", certainty, lambda: Ranked(SingleLines(read)), alike=True
)
