"""Gradient boosting: XGBoost ``[10]<tab>train-logloss:0.5<tab>eval-logloss:0.6``, LightGBM
``[10]<tab>training's binary_logloss: 0.5<tab>valid_1's auc: 0.7``, CatBoost ``10:<tab>learn: 0.69<tab>test:
0.68 ...``.

The first metric of the training set that has to fall is ``loss``, the same of another set ``eval_loss``. A
metric that has to rise (auc, ndcg, map, accuracy) keeps its name.
"""

from __future__ import annotations

import re

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat, SingleLines
from floatscope_diagnostics.readers.numbers import NUMBER, to_float
from floatscope_diagnostics.readers.piece import Piece

_LINE = re.compile(r"^(?:\[[\d:]{5,8}\] )?(?:\[LightGBM\] \[Info\] )?\[(\d{1,9})\]\s{1,4}(?=\S{1,60}[-'])")
_VALUE = re.compile(
    rf"([A-Za-z]\w{{0,40}})(?:-|'s )([A-Za-z][\w@-]{{0,40}}): ?({NUMBER})(?: \+ {NUMBER}|\+{NUMBER})?", re.I
)
_CATBOOST = re.compile(
    rf"^\s{{0,8}}(\d{{1,9}}):\s{{1,4}}learn: ({NUMBER})(?:\s{{1,4}}test: ({NUMBER}))?.{{0,80}}total: ", re.I
)
_RISES = re.compile(r"^(?:auc|aucpr|average_precision|map|ndcg|acc|accuracy|r2|f1|precision|recall)", re.I)
_NOTE = "metric {} taken as the loss"
_ONLY_RISING = "only metrics that rise: none is judged as a falling loss"


def certainty(head: Head) -> float:
    """Sure of a round's line."""
    hits = sum(1 for x in head.lines if (_LINE.match(x) and _VALUE.search(x)) or _CATBOOST.match(x))
    return 0.9 if hits else 0.0


def read(text: str) -> Piece | None:
    """The metrics of a round."""
    cat = _CATBOOST.match(text)
    if cat:
        learn, test = to_float(cat[2]), to_float(cat[3]) if cat[3] else None
        found = {"learn": learn, "test": test}
        values = {k: v for k, v in found.items() if v is not None}
        note = "CatBoost does not name its metric: kept under its own names, not judged as a falling loss"
        return Piece(values, step=int(cat[1]), note=note) if values else None
    at = _LINE.match(text)
    if at is None:
        return None
    values = {}
    chosen: str | None = None
    for match in _VALUE.finditer(text, at.end()):
        value = to_float(match[3])
        if value is None:
            continue
        part, metric = match[1], match[2]
        training = part.lower() in ("train", "training", "dtrain", "validation_0")
        key = f"{part}_{metric}"
        if not _RISES.match(metric):
            if training and "loss" not in values:
                key, chosen = "loss", metric
            elif not training and "eval_loss" not in values and chosen in (None, metric):
                key, chosen = "eval_loss", metric
        values[key] = value
    note = _NOTE.format(chosen) if chosen is not None else _ONLY_RISING
    return Piece(values, step=int(at[1]), note=note) if values else None


FORMAT = LineFormat("boosting", "XGBoost, LightGBM or CatBoost log", certainty, lambda: SingleLines(read))
