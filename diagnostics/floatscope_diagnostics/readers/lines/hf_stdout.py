"""What Hugging Face's Trainer prints: ``{'loss': 2.05, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch':
0.28}`` a line, often glued to a progress bar, `` 14%|# | 380/2724 [13:55<86:19, 132.41s/it]{'loss':
...}``.

The dict holds no step; the bar's counter gives it where there is one. Also the dicts of TRL, ms-swift,
Axolotl, sentence-transformers and others that build on it; versions 5 print the numbers as strings. The last
dict, ``train_runtime``, holds means over the run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import HELD, LineFormat
from floatscope_diagnostics.readers.lines import deepspeed
from floatscope_diagnostics.readers.numbers import to_float, to_int
from floatscope_diagnostics.readers.piece import EVAL, RESUME, START, TRAIN, Piece
from floatscope_diagnostics.readers.rank_prefix import Ranked

_DICT = re.compile(r"\{\s?'[A-Za-z][^{}]{3,20000}\}")
_PAIR = re.compile(r"'([^'{}:]{1,100})': ?(?:'([^']{1,60})'|([^,'{}\s]{1,60}))")
# bars without a description; those of downloads, tokenising and checkpoints have one
_BARS = re.compile(r"(?:^|[\]}])\s{0,200}\d{1,3}%\|[^|]{0,400}\| (\d{1,12})/(\d{1,12}) \[")
_BEGINS = "***** Running training *****"
_RESUMED = re.compile(r"Continuing training from global step (\d{1,12})|Resuming training from checkpoint")
SUMMARY: dict[str, float] = {}  # the dict of the whole run
REINFORCED = ("reward_std", "completion_length", "completions/mean_length", "objective/kl", "ppo/loss/total")
NOT_A_LOSS = (
    "reinforcement learning (rewards are logged): its loss is kept as policy_loss and not judged as one that "
    "should fall"
)
OURS = {
    "learning_rate": "lr",
    "num_input_tokens_seen": "tokens",
    "num_tokens": "tokens",
    "global_step": "step",
    "loss_scale": "loss_scale",
}
_TIMES = re.compile(r"_(?:runtime|per_second)$|^(?:elapsed_time|remaining_time|percentage)$")


def certainty(head: Head) -> float:
    """Dicts with the Trainer's own keys."""
    return 0.95 if any(_record(x) for x in head.lines if "'" in x) else 0.0


def training_values(found: dict[str, float]) -> tuple[dict[str, float], str | None]:
    """A record of the Trainer under our names, and a note. Rewards make its loss one that need not fall."""
    values = {OURS.get(k, k): v for k, v in found.items() if not _TIMES.search(k)}
    if "loss" in values and ("reward" in values or any(k in values for k in REINFORCED)):
        values["policy_loss"] = values.pop("loss")
        return values, NOT_A_LOSS
    return values, None


class HuggingFace:
    """Remembers the training bar's counter."""

    def __init__(self) -> None:
        self._total: int | None = None
        self._done: int | None = None

    def line(self, number: int, text: str) -> Iterable[Piece]:
        moved, bar_end = self._bar(text)
        found = _record(text)
        if found is not None:
            return HELD if found is SUMMARY else (self._piece(found, glued=bar_end > 0),)
        piece = deepspeed.read(text)
        if piece is not None:
            return (piece,)
        if _BEGINS in text:
            self._total = self._done = None
            return (Piece(kind=START),)
        resumed = _RESUMED.search(text)
        if resumed is not None:
            step = int(resumed[1]) if resumed[1] else None
            return (Piece(step=step, kind=RESUME, note="continues from a checkpoint"),)
        if moved and text[bar_end:].partition("]")[2].strip():
            return (Piece(step=self._done),)  # something happened at this step, on the bar's line
        return HELD if bar_end else ()

    def end(self) -> Iterable[Piece]:
        return ()

    def _bar(self, text: str) -> tuple[bool, int]:
        """Follows the training's bar: the first one without a description, and those with the same total.
        Whether it moved, and where it ends in the text (0: no bar)."""
        moved, end = False, 0
        for match in _BARS.finditer(text) if "%|" in text else ():
            end = match.end()
            done, total = int(match[1]), int(match[2])
            if self._total is None:
                self._total = total
            if total == self._total and done != self._done:
                self._done, moved = done, True
        return moved, end

    def _piece(self, found: dict[str, float], *, glued: bool) -> Piece:
        epoch = found.get("epoch")
        values, note = training_values({k: v for k, v in found.items() if k != "epoch"})
        step = values.pop("step", None)
        if step is None and self._done:
            # a loop over the bar (LLaMA-Factory PPO) prints inside of the step that the bar counts next
            step = self._done + 1 if glued and "grad_norm" not in values and note else self._done
        evaluation = "loss" not in values and any(k.startswith("eval_") for k in values)
        return Piece(
            values,
            step=to_int(str(step)),
            epoch=epoch,
            kind=EVAL if evaluation else TRAIN,
            note=note,
        )


def _record(text: str) -> dict[str, float] | None:
    """The numbers of the Trainer's dict in a line; None if it has none; SUMMARY for that of the whole run."""
    match = _DICT.search(text)
    if match is None:
        return None
    found: dict[str, float] = {}
    for pair in _PAIR.finditer(match[0]):
        name, word = pair[1], pair[2] or pair[3]
        if name == "global_step/max_steps":
            name, word = "step", word.split("/")[0]
        value = to_float(word)
        if value is not None:
            found[name] = value
    if "train_runtime" in found:
        return SUMMARY
    own = {"loss", "epoch", "learning_rate", "grad_norm", "eval_loss", "eval_runtime", "reward"} & set(found)
    return found if len(own) > 1 else None


FORMAT = LineFormat("hf_stdout", "Hugging Face Trainer output", certainty, lambda: Ranked(HuggingFace()))
