"""NeMo 2: ``Training epoch 0, iteration 10/999 | lr: 1.5e-06 | global_batch_size: 512 | global_step: 10 |
reduced_train_loss: 11.03 | train_step_timing in s: 3.5 | val_loss: 10.9``. (NeMo 1 prints Lightning's
bars.)"""

from __future__ import annotations

import re

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat, SingleLines
from floatscope_diagnostics.readers.pairs import COLON, pairs, renamed
from floatscope_diagnostics.readers.piece import EVAL, Piece

_LINE = re.compile(
    r"\b(Training|Validation) (?:epoch (\d{1,9}), )?iteration (\d{1,12})(?:/(\d{1,12}))?\s{0,4}\|"
)
_STEP = re.compile(r"\bglobal_step: (\d{1,12})")
_OURS = {
    "reduced_train_loss": "loss", "train_loss": "loss", "val_loss": "eval_loss", "global_step": None,
    "global_batch_size": None, "train_step_timing": "step_time_s", "grad_norm": "grad_norm",
    "s": "step_time_s",  # the last word of "train_step_timing in s"
}  # fmt: skip


def certainty(head: Head) -> float:
    """Sure of a training line."""
    return 1.0 if head.hits(_LINE) else 0.0


def read(text: str) -> Piece | None:
    """A line of training; a validation's loss comes with it, or at its end."""
    at = _LINE.search(text)
    if at is None:
        return None
    values = renamed(pairs(text[at.end() :], COLON), _OURS)
    step = _STEP.search(text)
    if not values:
        return None
    if at[1] == "Validation":
        evals = {k: v for k, v in values.items() if k == "eval_loss"}
        return Piece(evals, step=int(step[1]) if step else None, kind=EVAL) if evals else None
    if step:
        return Piece(values, step=int(step[1]))
    batches = int(at[4]) + 1 if at[4] else None
    return Piece(values, epoch=float(at[2] or 0), batch=int(at[3]), batches=batches)


FORMAT = LineFormat("nemo", "NeMo log", certainty, lambda: SingleLines(read))
