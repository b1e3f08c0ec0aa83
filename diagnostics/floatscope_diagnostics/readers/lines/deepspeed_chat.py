"""DeepSpeed-Chat's three steps: supervised (``***** Evaluating perplexity, Epoch 1/16 *****`` / ``ppl:
2.0``), reward or DPO (``chosen: 0.1, rejected: -0.2, loss: 0.66``), PPO (``Epoch: 0 | Step: 5 | PPO Epoch:
1 | Actor Loss: 0.03 | Critic Loss: 0.2``), with DeepSpeed's own lines between them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from floatscope_diagnostics.readers.fields import fields, measured
from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import HELD, LineFormat
from floatscope_diagnostics.readers.lines import deepspeed
from floatscope_diagnostics.readers.numbers import to_float
from floatscope_diagnostics.readers.piece import EVAL, TRAIN, Piece
from floatscope_diagnostics.readers.ranked import Ranked

_EVALUATING = re.compile(r"^\*{3,8} Evaluating (perplexity|rewards?), Epoch \d{1,6}/\d{1,6} \*{3,8}")
_PERPLEXITY = re.compile(r"^(?:ppl: (\S{1,40}?))(?:, loss: (\S{1,40}))?\s*$")
_PREFERENCE = re.compile(r"^chosen: (\S{1,40}), rejected: (\S{1,40}), loss: (\S{1,40})\s*$")
_REWARDS = re.compile(
    r"^chosen_last_scores \(higher is better\) ?: (\S{1,40}),"
    r"(?: rejected_last_scores \(lower is better\) ?: (\S{1,40}),)? "
    r"acc \(higher is better\) ?: (\S{1,40})"
)
_TRAINED = re.compile(r"^Epoch: (\d{1,6}), Step: (\d{1,12}), Rank: (\d{1,6}), loss = (\S{1,40})")
_EPOCH = re.compile(r"^Epoch (\d{1,6})/\d{1,6} with loss (\S{1,40})")
_PPO = re.compile(r"^Epoch: (\d{1,6}) \| Step: (\d{1,12}) \| PPO Epoch: \d{1,6} \| (Actor Loss: .{1,300})")
_REWARD = re.compile(r"\baverage reward score: (\S{1,40})")
_BEGINNING = re.compile(
    r"^Beginning of Epoch (\d{1,6})/\d{1,6}, Total (?:Micro|Generation) Batches (\d{1,12})"
)
_KNOWN = re.compile(r"^(?:\*{3,8} (?:Evaluating|Running) |Model Parameters: [\d.]{1,20} B, Latency: )")
_FROM_PERPLEXITY = "the evaluations print perplexity: eval_loss is its logarithm"
_PLAYERS = "actor and critic losses of reinforcement learning: not judged as losses that should fall"


def certainty(head: Head) -> float:
    """The scripts' own headings."""
    return 0.95 if head.bare_hits(_EVALUATING) or head.bare_hits(_BEGINNING) or head.bare_hits(_PPO) else 0.0


class Chat:
    """Remembers the number of batches of an epoch."""

    def __init__(self) -> None:
        self._batches: int | None = None

    def line(self, number: int, text: str) -> Iterable[Piece]:
        piece = _evaluation(text) or self._training(text)
        if piece is not None:
            return (piece,)
        match = _BEGINNING.match(text)
        if match is not None:
            self._batches = int(match[2])
        found = deepspeed.read(text)
        if found is not None:
            return (found,)
        return HELD if match is not None or _KNOWN.match(text) else ()

    def end(self) -> Iterable[Piece]:
        return ()

    def _training(self, text: str) -> Piece | None:
        match = _TRAINED.match(text)
        if match is not None:
            return _piece(
                {"loss": match[4]},
                epoch=float(match[1]),
                batch=int(match[2]),
                batches=self._batches,
                rank=int(match[3]),
            )
        match = _EPOCH.match(text)
        if match is not None:
            return _piece({"train_epoch_loss": match[2]})
        match = _PPO.match(text)
        if match is not None:
            values = measured(fields(match[3]), {"actor loss": "actor_loss", "critic loss": "critic_loss"})
            return Piece(
                values,
                epoch=float(match[1]),
                batch=int(match[2]),
                batches=self._batches,
                note=_PLAYERS,
            )
        match = _REWARD.search(text)
        return None if match is None else _piece({"reward": match[1]}, kind=EVAL)


def _evaluation(text: str) -> Piece | None:
    match = _PERPLEXITY.match(text)
    if match is not None:
        ppl = to_float(match[1])
        if ppl is None:
            return None
        loss = to_float(match[2] or "")
        if loss is None:
            loss = math.log(ppl) if ppl > 0 else ppl
        return Piece({"eval_ppl": ppl, "eval_loss": loss}, kind=EVAL, note=_FROM_PERPLEXITY)
    match = _PREFERENCE.match(text)
    if match is not None:
        return _piece({"eval_chosen": match[1], "eval_rejected": match[2], "eval_loss": match[3]}, kind=EVAL)
    match = _REWARDS.match(text)
    if match is not None:
        return _piece({"eval_chosen": match[1], "eval_rejected": match[2], "eval_acc": match[3]}, kind=EVAL)
    return None


def _piece(
    texts: dict[str, str | None],
    *,
    kind: str = TRAIN,
    epoch: float | None = None,
    batch: int | None = None,
    batches: int | None = None,
    rank: int | None = None,
) -> Piece | None:
    found = {k: to_float(v or "") for k, v in texts.items()}
    values = {k: v for k, v in found.items() if v is not None}
    return Piece(values, epoch=epoch, batch=batch, batches=batches, rank=rank, kind=kind) if values else None


FORMAT = LineFormat("deepspeed_chat", "DeepSpeed-Chat output", certainty, lambda: Ranked(Chat()))
