"""nanoGPT, minGPT, makemore, llama2.c and the gpt.py of the lecture: ``iter 10: loss 2.5, time 99.0ms,
mfu 3.0%`` and ``step 250: train loss 1.9, val loss 2.0``.

The second line is an estimate over many batches at the same step as the first. mfu -100 % means "not measured
yet".
"""

from __future__ import annotations

import re

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat, SingleLines
from floatscope_diagnostics.readers.numbers import to_float
from floatscope_diagnostics.readers.piece import EVAL, RESUME, Piece
from floatscope_diagnostics.readers.ranked import Ranked

_ITER = re.compile(
    r"\biter (\d{1,12}): loss (\S{1,40}?)(?: (BPC|bpc|bpb))?,(?: lr (\S{1,40}?),)?"
    r" time (\S{1,40}?)ms(?:, mfu (\S{1,20}?)%)?"
)
_LLAMA2C = re.compile(
    r"^(\d{1,12}) \| loss (\S{1,40}) \| lr (\S{1,40}) \| (\S{1,40}?)ms(?: \| mfu (\S{1,20}?)%)?\s*$"
)
_ESTIMATE = re.compile(
    r"\b(?:step|iter) (\d{1,12}): train loss (\S{1,40}?)(?: (BPC|bpc|bpb))?, "
    r"val(?:idation)? loss (\S{1,40}?)(?: (?:BPC|bpc|bpb))?(?:,|\s|$)"
)
_MINGPT = re.compile(r"^iter_dt (\S{1,40}?)ms; iter (\d{1,12}): train loss (\S{1,40})\s*$")
_MAKEMORE = re.compile(r"^step (\d{1,12}) \| loss (\S{1,40}) \| step time (\S{1,40}?)ms\s*$")
_MAKEMORE_EVAL = re.compile(r"^step (\d{1,12}) train loss: (\S{1,40}) test loss: (\S{1,40})\s*$")
_RESUMED = re.compile(r"^Resuming training from \S")
_MS_PER_S = 1000
BITS = "losses are printed in bits, not nats"


def certainty(head: Head) -> float:
    """The words of its two lines."""
    return 0.95 if any(head.bare_hits(x) for x in (_ITER, _LLAMA2C, _ESTIMATE, _MINGPT, _MAKEMORE)) else 0.0


def read(text: str) -> Piece | None:
    """One line."""
    match = _ITER.search(text)
    if match is not None:
        return _training(match[1], match[2], match[4], match[5], match[6], match[3])
    match = _LLAMA2C.match(text)
    if match is not None:
        return _training(match[1], match[2], match[3], match[4], match[5], None)
    match = _MINGPT.match(text)
    if match is not None:
        return _training(match[2], match[3], None, match[1], None, None)
    match = _MAKEMORE.match(text)
    if match is not None:
        return _training(match[1], match[2], None, match[3], None, None)
    match = _ESTIMATE.search(text)
    if match is not None:
        return _estimate(match[1], match[2], match[4], match[3])
    match = _MAKEMORE_EVAL.match(text)
    if match is not None:
        return _estimate(match[1], match[2], match[3], None)
    if _RESUMED.match(text):
        return Piece(kind=RESUME, note="continues from a checkpoint")
    return None


def _estimate(step: str, train: str, held_out: str, unit: str | None) -> Piece:
    found = {"eval_loss": to_float(held_out), "eval_train_loss": to_float(train)}
    values = {n: v for n, v in found.items() if v is not None}
    return Piece(values, step=int(step), kind=EVAL, note=BITS if unit else None)


def _training(
    step: str, loss: str, lr: str | None, milliseconds: str, mfu: str | None, unit: str | None
) -> Piece | None:
    values: dict[str, float] = {}
    for name, text, divisor in (
        ("loss", loss, 1),
        ("lr", lr, 1),
        ("step_time_s", milliseconds, _MS_PER_S),
    ):
        value = None if text is None else to_float(text)
        if value is not None:
            values[name] = value / divisor
    used = None if mfu is None else to_float(mfu)
    if used is not None and used >= 0:
        values["mfu_pct"] = used
    return Piece(values, step=int(step), note=BITS if unit else None) if values else None


FORMAT = LineFormat("nanogpt", "nanoGPT output", certainty, lambda: Ranked(SingleLines(read)), alike=True)
