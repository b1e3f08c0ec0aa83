"""torchtitan: ``[rank0]:[titan] 2026-05-18 16:08:16,958 - root - INFO - step: 54  loss:  2.77350  grad_norm:
0.5348  memory:  9.46GiB(64.99%)  tps: 7,084  tflops: 0.51  mfu: 0.16%``."""

from __future__ import annotations

import re

from floatscope_diagnostics.readers.fields import measure
from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat, SingleLines
from floatscope_diagnostics.readers.piece import EVAL, RESUME, START, TRAIN, Piece
from floatscope_diagnostics.readers.ranked import Ranked

_STEP = re.compile(r"\b(validate )?step:\s{1,8}(\d{1,12})\s{1,8}(\w{0,40}loss:\s{1,8}.{0,600})$")
_PAIR = re.compile(r"([A-Za-z]\w{0,60}):\s{1,8}(\S{1,40})")
_LOADED = re.compile(r"Loading (?:the )?checkpoint (?:at step (\d{1,12})|from \S)")
_BEGINS = re.compile(r"\bTraining starts at step (\d{1,12})\b")
_OURS: dict[str, str | None] = {
    "loss": "loss",
    "global_avg_loss": "loss",
    "global_max_loss": "global_max_loss",
    "grad_norm": "grad_norm",
    "tps": "tokens_per_s",
    "wps": "tokens_per_s",
    "tflops": "tflops",
    "mfu": "mfu_pct",
    "memory": None,
}


def certainty(head: Head) -> float:
    """A step with loss and memory."""
    return 0.95 if head.hits(re.compile(_STEP.pattern.replace(".{0,600})$", r".{0,200}\bmemory:)"))) else 0.0


def read(text: str) -> Piece | None:
    """One line."""
    match = _STEP.search(text)
    if match is None:
        begins = _BEGINS.search(text)
        if begins is not None:
            return Piece(kind=START) if begins[1] == "1" else None
        loaded = _LOADED.search(text)
        if loaded is None:
            return None
        step = int(loaded[1]) if loaded[1] else None
        return Piece(step=step, kind=RESUME, note="continues from a checkpoint")
    values: dict[str, float] = {}
    for name, word in _PAIR.findall(match[3]):
        key = _OURS.get(name, name)
        value = measure(word) if key is not None else None
        if key is not None and value is not None:
            values.setdefault(key, value)
    if match[1]:
        loss = values.get("loss")
        return None if loss is None else Piece({"eval_loss": loss}, step=int(match[2]), kind=EVAL)
    return Piece(values, step=int(match[2]), kind=TRAIN)


FORMAT = LineFormat(
    "torchtitan", "torchtitan output", certainty, lambda: Ranked(SingleLines(read), keep=True)
)
