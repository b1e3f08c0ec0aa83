"""JAX with CLU's metric writer (Flax examples, T5X, big_vision, Scenic).

``I0101 10:00:00.000000 140 logging_writer.py:48] [100] accuracy=0.5, loss=2.3, learning_rate=0.1,
steps_per_sec=3.1``
``... [1000] collection=train loss=2.3, ...``; a collection other than train, or names with eval or valid,
is an evaluation.
"""

from __future__ import annotations

import re

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat, SingleLines
from floatscope_diagnostics.readers.pairs import EQUALS, pairs, renamed
from floatscope_diagnostics.readers.piece import EVAL, Piece

_LINE = re.compile(r"\blogging_writer\.py:\d{1,6}\] \[(\d{1,12})\] (?:collection=([\w/.-]{1,80})[, ]{1,2})?")
_OURS = {
    "train_loss": "loss", "train/loss": "loss", "learning_rate": "lr", "train_learning_rate": "lr",
    "train/learning_rate": "lr", "gradient_norm": "grad_norm", "l2_grads": "grad_norm",
    "l2_params": "param_norm", "val_loss": "eval_loss", "valid_loss": "eval_loss",
    "validation_loss": "eval_loss", "eval/loss": "eval_loss", "training_loss": "loss",
}  # fmt: skip


def certainty(head: Head) -> float:
    """Sure of the writer's prefix."""
    return 0.9 if head.hits(_LINE) else 0.0


def read(text: str) -> Piece | None:
    """The scalars of a step."""
    at = _LINE.search(text)
    if at is None:
        return None
    values = renamed(pairs(text[at.end() :], EQUALS), _OURS)
    if not values:
        return None
    collection = (at[2] or "train").lower()
    if collection != "train":
        values = {k if k.startswith("eval_") else f"eval_{k}": v for k, v in values.items()}
        return Piece(values, step=int(at[1]), kind=EVAL)
    evals = all(re.match(r"(?:eval|val|test)", k) for k in values)
    return Piece(values, step=int(at[1]), kind=EVAL if evals else "train")


FORMAT = LineFormat("jax_clu", "CLU metric writer (JAX)", certainty, lambda: SingleLines(read))
