"""OpenNMT-py: ``Epoch  1, 12900/37527; acc: 4.48; ppl: 35173.75; xent: 10.47; ...`` (before 1.0), ``Step
50/100000; acc: 4.39; ppl: 12345.1; xent: 9.42; lr: 0.00001; ...``, ``Validation perplexity: 12.3``; and
OpenNMT-tf: ``Step = 100 ; steps/s = 1.92, ... ; Learning rate = 0.000012 ; Loss = 9.12``."""

from __future__ import annotations

import math
import re

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat, SingleLines
from floatscope_diagnostics.readers.numbers import NUMBER, to_float
from floatscope_diagnostics.readers.piece import EVAL, RESUME, Piece
from floatscope_diagnostics.readers.ranked import Ranked

_PY = re.compile(
    r"\b(?:Epoch\s{1,4}(\d{1,6}),\s{1,12}(\d{1,12})/\s{0,12}(\d{1,12})"
    r"|Step (\d{1,12})/\s{0,12}\d{1,12}); {1,4}(acc: .{0,600})$"
)
_PAIR = re.compile(rf"\b(acc|ppl|xent|lr|loss|sents|bsz): {{0,12}}({NUMBER})")
_TF = re.compile(r"\bStep = (\d{1,12}) ; .{0,300}?(?:\bLearning rate = (\S{1,40}) ; )?\bLoss = (\S{1,40})")
_TF_EVALUATION = re.compile(r"\bEvaluation result for step (\d{1,12}): loss = (\S{1,40})")
_VALIDATION = re.compile(r"\bValidation (perplexity|accuracy): {0,4}(\S{1,40})")
_LOADED = re.compile(r"\bLoading checkpoint from \S")
_OURS = {"xent": "loss", "loss": "loss"}
FROM_PERPLEXITY = "the validation prints perplexity: eval_loss is its logarithm"


def certainty(head: Head) -> float:
    """Both versions' training lines."""
    return 0.95 if head.hits(_PY) or head.hits(_TF) else 0.0


def read(text: str) -> Piece | None:
    """One line."""
    match = _PY.search(text)
    if match is not None:
        values: dict[str, float] = {}
        for name, word in _PAIR.findall(match[5]):
            value = to_float(word)
            if value is not None:
                values.setdefault(_OURS.get(name, name), value)
        if match[4]:
            return Piece(values, step=int(match[4]))
        return Piece(values, epoch=float(match[1]), batch=int(match[2]), batches=int(match[3]))
    match = _TF.search(text)
    if match is not None:
        found = {"loss": to_float(match[3]), "lr": to_float(match[2] or "")}
        return Piece({k: v for k, v in found.items() if v is not None}, step=int(match[1]))
    match = _TF_EVALUATION.search(text)
    value = to_float(match[2]) if match else None
    if match is not None and value is not None:
        return Piece({"eval_loss": value}, step=int(match[1]), kind=EVAL)
    match = _VALIDATION.search(text)
    value = to_float(match[2]) if match else None
    if match is not None and value is not None:
        if match[1] == "accuracy":
            return Piece({"eval_acc": value}, kind=EVAL)
        values = {"eval_ppl": value, "eval_loss": math.log(value) if value > 0 else value}
        return Piece(values, kind=EVAL, note=FROM_PERPLEXITY)
    if _LOADED.search(text):
        return Piece(kind=RESUME, note="continues from a checkpoint")
    return None


FORMAT = LineFormat("opennmt", "OpenNMT output", certainty, lambda: Ranked(SingleLines(read)), alike=True)
