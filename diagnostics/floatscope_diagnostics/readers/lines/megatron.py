"""Megatron-LM and Megatron-DeepSpeed: ``iteration 10/ 100 | consumed samples: 80 | ... | lm loss: 1.06E+01
|``.

Versions differ in the fields, in "lm loss: 1.0" or "lm loss 1.0", and in a time stamp in front. Two traps:
the current code prints a loss only if its mean over the window is above 0, so a NaN loss, and a window of
skipped iterations alone, leave the field out (training_log of megatron/training/training.py); and the number
of skipped iterations counts the window since the last line, not the run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from floatscope_diagnostics.readers.fields import fields, measured
from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import HELD, LineFormat
from floatscope_diagnostics.readers.lines import deepspeed
from floatscope_diagnostics.readers.numbers import to_float
from floatscope_diagnostics.readers.piece import EVAL, RESUME, Piece
from floatscope_diagnostics.readers.ranked import Ranked

ITERATION = re.compile(r"(?<!, )\biteration\s{1,12}(\d{1,12})\s{0,4}/\s{0,12}\d{1,12} \|")
NEOX = re.compile(r"samples/sec: .{0,40}\| iteration\s{1,12}\d{1,12}\s{0,4}/.{0,400}\blm_loss\b")
_EVALUATION = re.compile(
    r"\b(?:(validation|valid|test|evaluation) (?:loss|results) at|loss at) "
    r"(?:iteration (\d{1,12})|the end of training)([^|]{0,120})\|(.*)"
)
_LOADED = re.compile(r"\bloaded checkpoint from .{0,400}\bat iteration (\d{1,12})")
_KNOWN = re.compile(
    r"^\s{0,8}(?:-{20}|time \(ms\)|\(min, max\) time|after \d{1,12} iterations memory|saving checkpoint)"
)
_SETUP = re.compile(r"building \w+ model \.\.\.|using world size: \d+|---- end of arguments ----")
NAN_BY_ABSENCE = (
    "the loss is missing on lines whose neighbours have it: this version prints no loss that is NaN; read as "
    "NaN"
)
_SKIPPED = "no loss is printed where all iterations since the last line were skipped"
_TOTALS = ("lm loss", "lm_loss", "total loss", "total_loss", "loss", "classification loss")
_OURS: dict[str, str | None] = {
    "learning rate": "lr",
    "grad norm": "grad_norm",
    "params norm": "param_norm",
    "loss scale": "loss_scale",
    "consumed tokens": "tokens",
    "number of nan iterations": "nan_iterations",
    "number of skipped iterations": "skipped_iterations",
}
_MS = "elapsed time per iteration (ms)"


def certainty(head: Head) -> float:
    """Sure with one line of an iteration between pipes; GPT-NeoX prints them with ``lm_loss``."""
    if head.hits(NEOX):
        return 0.5
    return 0.95 if head.hits(ITERATION) else 0.3 if head.hits(_SETUP) > 1 else 0.0


class Iterations:
    """Parser of Megatron and what descends from it."""

    def __init__(self) -> None:
        self._skipped = 0.0
        self._deepspeed_counts = False

    def line(self, number: int, text: str) -> Iterable[Piece]:
        match = ITERATION.search(text)
        if match is not None:
            return (self._iteration(int(match[1]), fields(text)),)
        evaluation = _EVALUATION.search(text)
        if evaluation is not None:
            return _evaluation(evaluation)
        loaded = _LOADED.search(text)
        if loaded is not None:
            return (Piece(step=int(loaded[1]), kind=RESUME, note="continues from a checkpoint"),)
        piece = deepspeed.read(text)
        if piece is None:
            return HELD if _KNOWN.match(text) else ()
        self._deepspeed_counts |= "skipped_steps" in piece.values
        return (piece,)

    def end(self) -> Iterable[Piece]:
        return ()

    def _iteration(self, step: int, found: Mapping[str, str]) -> Piece:
        values = measured(
            {k: v for k, v in found.items() if not ("iteration" in k and k.endswith("/"))}, _OURS
        )
        note = _name_loss(values)
        milliseconds = values.pop(_MS, None)
        if milliseconds is not None:
            values["step_time_s"] = milliseconds / 1000
        skipped, broken = values.pop("skipped_iterations", 0.0), values.get("nan_iterations", 0.0)
        if skipped > 0 and not self._deepspeed_counts:
            self._skipped += skipped
            values["skipped_steps"] = self._skipped
        if (
            "loss" not in values and "loss scale" in found
        ):  # printed after the losses: the line is not cut off
            if skipped > 0 and not broken:
                note = _SKIPPED
            else:
                values["loss"], note = float("nan"), NAN_BY_ABSENCE
        return Piece(values, step=step, note=note)


def _name_loss(values: dict[str, float]) -> str | None:
    """Calls the training loss ``loss``; other losses keep their names."""
    for name in _TOTALS:
        if name in values:
            values["loss"] = values.pop(name)
            return None
    others = [n for n in values if n.endswith("loss")]
    if not others:
        return None
    if len(others) == 1:
        values["loss"] = values.pop(others[0])
        return f"{others[0]} is read as the loss"
    return "several losses and no total: " + ", ".join(others) + " keep their names"


def _evaluation(match: re.Match[str]) -> Iterable[Piece]:
    """``validation loss at iteration 1000 on 320-sample draw from test set | lm loss value: 1.3E+01 |``"""
    test = match[1] == "test" or "test" in match[3]
    values: dict[str, float] = {}
    for name, text in fields(match[4]).items():
        value = to_float(text)
        plain = name.removesuffix(" value").replace(" ", "_")
        if value is not None:
            ours = "loss" if plain in ("lm_loss", "loss", "total_loss") else plain
            values.setdefault(("test_" if test else "eval_") + ours, value)
    step = int(match[2]) if match[2] else None
    return (Piece(values, step=step, kind=EVAL),) if values else ()


FORMAT = LineFormat("megatron", "Megatron-LM output", certainty, lambda: Ranked(Iterations()), alike=True)
