"""nanotron: ``[INFO|DP=0|PP=1|TP=0|host]: iteration: 10 / 100 | consumed_tokens: 1.31M |
elapsed_time_per_iteration_ms: 2.1K | ... | lm_loss: 8.4 | lr: 0.00015 | grad_norm: 0.5``, and picotron:
``[rank 0] Step: 1 | Loss: 10.9 | Global batch size: 8.19K | Tokens/s: 10.5K | ... | MFU: 10.4% | Memory
usage: 4.5GB``.

Numbers are rounded to K, M, G.
"""

from __future__ import annotations

import re

from floatscope_diagnostics.readers.fields import fields, measured
from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat, SingleLines
from floatscope_diagnostics.readers.piece import Piece
from floatscope_diagnostics.readers.ranked import Ranked

_ITERATION = re.compile(r"\biteration: {1,4}(\d{1,12}) / {0,4}\d{1,12} \| (consumed_tokens: .{1,1500})$")
_STEP = re.compile(r"(?:^|\] )Step: {1,4}(\d{1,12}) {0,8}\| (Loss: .{1,100}\| Global batch size: .{1,600})$")
_OURS: dict[str, str | None] = {
    "lm_loss": "loss",
    "loss": "loss",
    "consumed_tokens": "tokens",
    "tokens": "tokens",
    "tokens_per_sec": "tokens_per_s",
    "tokens/s": "tokens_per_s",
    "tokens/s/gpu": "tokens_per_s_per_gpu",
    "mfu": "mfu_pct",
    "memory usage": None,
}
_MILLISECONDS = "elapsed_time_per_iteration_ms"


def certainty(head: Head) -> float:
    """Either kind of line."""
    return 0.95 if head.hits(_ITERATION) or head.hits(_STEP) else 0.0


def read(text: str) -> Piece | None:
    """One line."""
    match = _ITERATION.search(text) or _STEP.search(text)
    if match is None:
        return None
    values = measured(fields(match[2]), _OURS)
    milliseconds = values.pop(_MILLISECONDS, None)
    if milliseconds is not None:
        values["step_time_s"] = milliseconds / 1000
    return Piece(values, step=int(match[1])) if values else None


FORMAT = LineFormat("nanotron", "nanotron output", certainty, lambda: Ranked(SingleLines(read)), alike=True)
