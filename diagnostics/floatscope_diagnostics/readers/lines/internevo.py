"""InternEvo (InternLM): ``... record_current_batch_training_metrics -- tflops=63.3,step=10,loss=9.1,tgs
(tokens/gpu/second)=4167.4,lr=4e-07,loss_scale=65536.0,grad_norm=63.7,...,inf_nan_skip_batches=0,...``; later
versions put a blank behind the commas and a dict of norms, ``grad_norm={'0_default': 1.2}``."""

from __future__ import annotations

import re

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat, SingleLines
from floatscope_diagnostics.readers.numbers import NUMBER, to_float, to_int
from floatscope_diagnostics.readers.piece import Piece
from floatscope_diagnostics.readers.ranked import Ranked

_LINE = re.compile(r"\brecord_current_batch_training_metrics\b.{0,60}(\btflops=.{1,3000})$")
_PAIR = re.compile(
    rf"\b([a-z][a-z_]{{0,60}})(?: \([^)]{{1,60}}\))?=(?:\{{'[^']{{1,60}}': ?)?({NUMBER})", re.I
)
_OURS = {
    "num_consumed_tokens": "tokens",
    "inf_nan_skip_batches": "skipped_steps",
    "fwd_bwd_time": "step_time_s",
}
_LEFT_OUT = ("step", "micro_num", "largest_length", "largest_batch", "smallest_batch", "adam_beta")


def certainty(head: Head) -> float:
    """The name of the function that prints."""
    return 0.95 if head.hits(_LINE) else 0.0


def read(text: str) -> Piece | None:
    """One line."""
    match = _LINE.search(text)
    if match is None:
        return None
    values: dict[str, float] = {}
    step = None
    for name, word in _PAIR.findall(match[1]):
        value = to_float(word.rstrip(","))
        if name == "step":
            step = to_int(word.rstrip(","))
        elif value is not None and not name.startswith(_LEFT_OUT):
            values.setdefault(_OURS.get(name, name), value)
    return Piece(values, step=step) if values else None


FORMAT = LineFormat("internevo", "InternEvo output", certainty, lambda: Ranked(SingleLines(read)), alike=True)
