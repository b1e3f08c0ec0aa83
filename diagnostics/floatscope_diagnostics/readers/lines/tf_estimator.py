"""TensorFlow's Estimator and what runs on it (Tensor2Tensor, BERT): ``INFO:tensorflow:loss = 1.87, step =
31601 (182.2 sec)``; TF-Slim: ``global step 100: loss = 1.23 (0.4 sec/step)``.

A NaN loss is named only by the hook that stops the run: ``ERROR:tensorflow:Model diverged with loss = NaN.``
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import HELD, LineFormat
from floatscope_diagnostics.readers.numbers import to_float
from floatscope_diagnostics.readers.piece import EVAL, RESUME, Piece
from floatscope_diagnostics.readers.ranked import Ranked

_LOG = re.compile(r"\bINFO:tensorflow:|\.py:\d{1,6}\] ")
_LOSS = re.compile(r"(?:^|[\s,])loss = (\S{1,40}?)(?:,|\s|$)")
_STEP = re.compile(r"\b(?:global_step|step) = (\d{1,12})\b")
_RATE = re.compile(r"\b(?:learning_rate|lr) = (\S{1,40}?)(?:,|\s|$)")
_SLIM = re.compile(r"\bglobal step (\d{1,12}): loss = (\S{1,40}) \((\S{1,40}) sec/step\)")
_DIVERGED = re.compile(r"\bModel diverged with loss = NaN|\bNaN loss during training")
_SAVING = re.compile(r"\bSaving checkpoints for (\d{1,12})\b")
_EVALUATED = re.compile(r"\bSaving dict for global step (\d{1,12}): (.{1,2000})$")
_RESTORING = re.compile(r"\bRestoring parameters from \S{1,400}ckpt-(\d{1,12})")
_SPEED = re.compile(r"\bglobal_step/sec: (\S{1,40})")
NAMED_BY_ERROR = "the NaN is named by an error message only; placed at the step of the checkpoint before it"


def certainty(head: Head) -> float:
    """The logger's words around a loss."""
    if head.hits(_SLIM):
        return 0.95
    return 0.95 if any("loss = " in x and _LOG.search(x) and _STEP.search(x) for x in head.lines) else 0.0


class Estimator:
    """Remembers the last step, of a loss or a checkpoint."""

    def __init__(self) -> None:
        self._last: int | None = None

    def line(self, number: int, text: str) -> Iterable[Piece]:
        for found in (_evaluation(text), self._slim(text), self._training(text)):
            if found is not None:
                return (found,)
        saving = _SAVING.search(text)
        if saving is not None:
            self._last = int(saving[1])
            return HELD
        if _DIVERGED.search(text):
            if text.startswith("tensorflow."):  # the exception repeats it
                return HELD
            return (Piece({"loss": float("nan")}, step=self._last, note=NAMED_BY_ERROR),)
        restoring = _RESTORING.search(text)
        if restoring is not None and self._last is None:  # evaluations restore, too
            return (Piece(step=int(restoring[1]), kind=RESUME, note="continues from a checkpoint"),)
        return HELD if _SPEED.search(text) else ()

    def end(self) -> Iterable[Piece]:
        return ()

    def _slim(self, text: str) -> Piece | None:
        match = _SLIM.search(text)
        if match is None:
            return None
        self._last = int(match[1])
        found = {"loss": to_float(match[2]), "step_time_s": to_float(match[3])}
        return Piece({k: v for k, v in found.items() if v is not None}, step=self._last)

    def _training(self, text: str) -> Piece | None:
        match = _LOG.search(text)
        rest = text[match.end() :] if match else ""
        loss = _LOSS.search(rest)
        value = to_float(loss[1]) if loss else None
        if value is None:
            return None
        step, rate = _STEP.search(rest), _RATE.search(rest)
        values = {"loss": value}
        lr = to_float(rate[1]) if rate else None
        if lr is not None:
            values["lr"] = lr
        self._last = int(step[1]) if step else self._last
        return Piece(values, step=int(step[1]) if step else None)


def _evaluation(text: str) -> Piece | None:
    match = _EVALUATED.search(text)
    if match is None:
        return None
    values: dict[str, float] = {}
    for part in match[2].split(", "):
        name, _, word = part.partition(" = ")
        value = to_float(word)
        if value is not None and name != "global_step":
            values["eval_" + name.strip().removeprefix("metrics-")] = value
    return Piece(values, step=int(match[1]), kind=EVAL)


FORMAT = LineFormat("tf_estimator", "TensorFlow Estimator output", certainty, lambda: Ranked(Estimator()))
