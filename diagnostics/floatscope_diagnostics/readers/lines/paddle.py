"""PaddlePaddle's suites: PaddleSpeech and MASR, PaddleSlim, PaddleDetection, PaddleOCR, PaddleSeg,
PaddleClas, PaddleNLP.

``Train [...] epoch: [1/50], batch: [3600/8832], learning rate: 0.0005, train loss: 88.1, eta: ...``
``...-INFO: Total iter: 10, epoch: 0, batch: 10, loss: [nan]``
``ppdet.engine INFO: Epoch: [0] [ 20/1849] learning_rate: 0.0003 loss_bbox: 4.4 loss: 5.1 ... batch_cost:
0.4``
``ppocr INFO: epoch: [1/500], global_step: 10, lr: 0.001, loss: 7.8, ... avg_batch_cost: 1.3 s, ips: 12.9``
``[TRAIN] epoch: 1, iter: 10/10000, loss: 1.2, lr: 0.01, batch_cost: 0.2, ...``
``[Train][Epoch 1/120][Iter: 10/5005]lr(Cosine): 0.1, top1: 0.1, CELoss: 6.9, loss: 6.9, batch_cost: 0.3s``
``global step 100, epoch: 1, batch: 99, loss: 0.68, ...``; ``loss: 0.68, learning_rate: 1e-05, global_step:
10`` A bare ``iter:`` counts through all epochs, one in brackets inside its epoch.
"""

from __future__ import annotations

import re

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat, SingleLines
from floatscope_diagnostics.readers.pairs import COLON, pairs, renamed
from floatscope_diagnostics.readers.piece import EVAL, Piece

_STEP = re.compile(
    r"\b(?:global[ _]step:? ?|Total iter: ?)(\d{1,12})|[ ,]iter: ?(\d{1,12})(?:/\d{1,12})?[, ]"
)
_EPOCH = re.compile(r"\bepoch:? ?\[?\s{0,4}(\d{1,9})\s?(?:/\s?\d{1,9})?\]?", re.I)
_BATCH = re.compile(
    r"(?:\bbatch: ?\[?|\[Iter: ?|\bEpoch: ?\[\d{1,9}\] \[)\s{0,9}"
    r"(?P<batch>\d{1,12})(?:/(?P<batches>\d{1,12}))?"
)
_LOSS = re.compile(r"\w{0,40}loss: \[?[\dni+-]", re.I)
_MINE = re.compile(
    r"\bpp(?:ocr|det|cls|nlp)\b|\bbatch_cost: |\breader_cost: |\[(?:TRAIN|Train)\]|\bTotal iter: \d|"
    r"\bglobal step \d{1,12}, epoch: |\bbatch: \[\d{1,12}/\d{1,12}\], learning rate: |\bips: \d|"
    r"\bTrain: Rank: \d|\bglobal_step: \d.{0,400}\binterval_runtime: "
)
_EVAL = re.compile(r"\[(?:EVAL|Eval)\]|\bvalid: |\beval[ _]loss: |\bValid: |\bEval\b|\bcv_loss\b")
_EVAL_LOSS = re.compile(r"\beval[ _]loss: ")
_PART = re.compile(r"\[Eval\].{0,40}\[Iter: ")
_RATE = re.compile(r"\blr\(\w{1,40}\)")
_OURS = {
    "rate": "lr", "learning_rate": "lr", "batch_cost": "step_time_s", "avg_batch_cost": "step_time_s",
    "reader_cost": "data_time_s", "avg_reader_cost": "data_time_s", "data_cost": "data_time_s",
    "train_loss": "loss", "val_history_loss": "eval_loss",
}  # fmt: skip
_PLACE = ("epoch", "iter", "batch", "eta", "rank", "global_step", "step", "info", "samples", "lr_epoch")


def certainty(head: Head) -> float:
    """Sure of a line with a loss and a word only these suites print."""
    mine = sum(1 for x in head.lines if _LOSS.search(x) and _MINE.search(x))
    return 0.85 if mine else 0.0


def read(text: str) -> Piece | None:
    """The values of a line with a loss."""
    text = _RATE.sub("lr", text)
    if not _LOSS.search(text) or _PART.search(text):
        return None
    step, epoch, batch = _STEP.search(text), _EPOCH.search(text), _BATCH.search(text)
    if not (step or epoch or batch or _MINE.search(text) or _EVAL_LOSS.search(text)):
        return None
    found = dict.fromkeys(_PLACE)
    values = renamed(pairs(text, COLON), {**found, **_OURS})
    if "loss" not in values and "avg_loss" in values:
        values["loss"] = values.pop("avg_loss")
    number = next((int(g) for g in step.groups() if g), None) if step else None
    at_epoch = float(epoch[1]) if epoch else None
    if _EVAL.search(text):
        loss = values.pop("loss", None)
        loss = values.pop("val_loss", loss)
        evals = {k if k.startswith("eval_") else f"eval_{k}": v for k, v in values.items() if k != "lr"}
        if loss is not None:
            evals.setdefault("eval_loss", loss)  # PaddleSpeech prints the mean so far as val_history_loss
        return Piece(evals, step=number, kind=EVAL)
    return Piece(
        values,
        step=number,
        epoch=at_epoch,
        batch=int(batch["batch"]) if batch else None,
        batches=int(batch["batches"]) if batch and batch["batches"] else None,
        rank=_rank(text),
    )


def _rank(text: str) -> int | None:
    found = re.search(r"\bRank: (\d{1,6}),", text)
    return int(found[1]) if found else None


FORMAT = LineFormat("paddle", "PaddlePaddle log", certainty, lambda: SingleLines(read))
