"""What one line of a text log says, before the pieces are put together to steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

TRAIN, EVAL, EVENT, START, RESUME = "train", "eval", "event", "start", "resume"


@dataclass(frozen=True)
class Piece:
    """Values of one moment of a run.

    values: by our names where they have one (``loss``, ``eval_loss``, ``grad_norm``, ``lr``, ``loss_scale``,
    ...), else by the log's own. NaN and Inf are themselves; a value that is not there has no key.
    step: optimizer step as printed, None if the line has none.  epoch: epoch as printed, from the log's own
    first number; may be a fraction.  batch, batches: iteration inside the epoch and iterations of an epoch,
    where the log counts those instead of steps.  rank: where the line names one.
    kind: TRAIN values of a step; EVAL values of an evaluation (after the last step, if it names none); EVENT
    something that happened during the step that is now running (an overflow); START a run begins here;
    RESUME a checkpoint was loaded.  note: a remark for the report.
    """

    values: Mapping[str, float] = field(default_factory=dict)
    step: int | None = None
    epoch: float | None = None
    batch: int | None = None
    batches: int | None = None
    rank: int | None = None
    kind: str = TRAIN
    note: str | None = None
