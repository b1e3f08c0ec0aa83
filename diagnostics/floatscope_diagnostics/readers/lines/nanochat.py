"""nanochat: ``step 00010/21400 (0.05%) | loss: 9.1 | grad norm: 0.5 | lrm: 1.00 | dt: 520.0ms | tok/sec:
1,007,000 | mfu: 47.5 | total time: 1.2m`` and ``Step 00250 | Validation bpb: 1.05``; chat training prints
``Step 00010/00700 | Training loss: 1.2| lrm: 1.0| num_tokens: 9,000``.
"""

from __future__ import annotations

import re

from floatscope_diagnostics.readers.fields import fields, measured
from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat, SingleLines
from floatscope_diagnostics.readers.piece import EVAL, TRAIN, Piece
from floatscope_diagnostics.readers.ranked import Ranked

_STEP = re.compile(
    r"^\s{0,8}step (\d{1,12})(?:/\d{1,12})?(?: \([\d.]{1,10}%\))? ?\| ?(?:Epoch: ?\d{1,6} ?\| ?)?"
    r"((?:(?:training )?loss: .{0,300}\blrm|validation (?:bpb|loss):|CORE metric:|example step"
    r"|average reward:).{0,400})",
    re.I,
)
_OURS: dict[str, str | None] = {
    "loss": "loss",
    "training loss": "loss",
    "grad norm": "grad_norm",
    "dt": "step_time_s",
    "tok/sec": "tokens_per_s",
    "mfu": "mfu_pct",
    "lrm": "lr_multiplier",
    "num_tokens": "label_tokens",
    "validation bpb": "eval_loss",
    "validation loss": "eval_loss",
    "core metric": "core_metric",
    "average reward": "reward",
    "total time": None,
    "eta": None,
    "example step": None,
    "pass": None,
}
_REWARDS = "reinforcement learning: its loss is kept as policy_loss and not judged as a loss that should fall"


def certainty(head: Head) -> float:
    """Lines of steps with its own fields."""
    return 0.95 if head.bare_hits(_STEP) else 0.0


def read(text: str) -> Piece | None:
    """One line."""
    match = _STEP.match(text)
    if match is None:
        return None
    values = measured(fields(match[2]), _OURS)
    bits = "validation bpb" in match[2].lower()
    note = "the validation loss is in bits a byte, the training loss in nats a token" if bits else None
    if "reward" in values or "example step" in match[2].lower():
        note = _REWARDS
        if "loss" in values:
            values["policy_loss"] = values.pop("loss")
    kind = TRAIN if "loss" in values or "policy_loss" in values else EVAL
    return Piece(values, step=int(match[1]), kind=kind, note=note) if values else None


FORMAT = LineFormat("nanochat", "nanochat output", certainty, lambda: Ranked(SingleLines(read)), alike=True)
