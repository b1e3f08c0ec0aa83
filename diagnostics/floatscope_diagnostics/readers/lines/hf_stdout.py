"""What Hugging Face's Trainer prints: ``{'loss': 2.05, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch':
0.28}`` a line, often glued to a progress bar, `` 14%|# | 380/2724 [13:55<86:19, 132.41s/it]{'loss':
...}``.

The dict holds no step; the bar's counter gives it where there is one. Also the dicts of TRL, ms-swift,
Axolotl, sentence-transformers and others that build on it; versions 5 print the numbers as strings. The last
dict, ``train_runtime``, holds means over the run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import replace

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import HELD, LineFormat
from floatscope_diagnostics.readers.lines import deepspeed
from floatscope_diagnostics.readers.numbers import to_float, to_int
from floatscope_diagnostics.readers.piece import EVAL, RESUME, START, TRAIN, Piece
from floatscope_diagnostics.readers.ranked import Ranked

_DICT = re.compile(r"\{\s?'[A-Za-z][^{}]{3,20000}\}")
_PAIR = re.compile(r"'([^'{}:]{1,100})': ?(?:'([^']{1,60})'|([^,'{}\s]{1,60}))")
# bars without a description; those of downloads, tokenising and checkpoints have one
_BARS = re.compile(
    r"(?:^|[\]}])\s{0,200}\d{1,3}%\|[^|]{0,400}\| (\d{1,12})/(\d{1,12}) \["
    r"(?:[^,\]]{1,40},\s{1,4}([\d.]{1,12})it/s)?"
)
_DRAWN_PER_S = 10  # tqdm draws at most every 0.1 s (mininterval)
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
    """Remembers the training bar's counter.

    A bar is not drawn at every step where these are quick, but always anew below a dict, where it shows the
    dict's step.
    """

    def __init__(self) -> None:
        self._total: int | None = None
        self._done: int | None = None
        self._latest: tuple[int, int] | None = None  # of any bar: done, total
        self._held: Piece | None = None
        self._epoch = -1.0

    def line(self, number: int, text: str) -> Iterable[Piece]:
        end, bars = self._bars(text)
        found = _record(text)
        out = self._release(None if found and len(bars) < 2 else bars)
        if found is not None:
            out += self._take(found, glued=end > 0)
        elif (piece := deepspeed.read(text)) is not None:
            out.append(piece)
        elif _BEGINS in text:
            self._total = self._done = None
            out.append(Piece(kind=START))
        elif (resumed := _RESUMED.search(text)) is not None:
            step = int(resumed[1]) if resumed[1] else None
            out.append(Piece(step=step, kind=RESUME, note="continues from a checkpoint"))
        elif bars and text[end:].partition("]")[2].strip():
            out.append(Piece(step=self._done))  # something happened at this step, on the bar's line
        return out or (HELD if end or found is not None else ())

    def end(self) -> Iterable[Piece]:
        return self._release(None)

    def _bars(self, text: str) -> tuple[int, list[tuple[int, bool]]]:
        """Where the last bar ends in the text (0: no bar), and of the training's bars (the first one without
        a description, and those with the same total) the counter and whether steps are quick."""
        end = 0
        counters: list[tuple[int, bool]] = []
        for match in _BARS.finditer(text) if "%|" in text else ():
            end = match.end()
            done, total = int(match[1]), int(match[2])
            self._latest = done, total
            if self._total is None:
                self._total = total
            if total == self._total:
                self._done = done
                counters.append((done, _quick(match[3])))
        return end, counters

    def _release(self, bars: list[tuple[int, bool]] | None) -> list[Piece]:
        """The record held back, at the step of the bar drawn below it."""
        piece, self._held = self._held, None
        if piece is not None and bars and bars[0][1] and (piece.step or 0) <= bars[0][0]:
            piece = replace(piece, step=bars[0][0])
        return [] if piece is None else [piece]

    def _take(self, found: dict[str, float], *, glued: bool) -> list[Piece]:
        if found is SUMMARY:
            self._epoch = math.inf  # what comes now is another training
            return []
        epoch = found.get("epoch")
        values, note = training_values({k: v for k, v in found.items() if k != "epoch"})
        evaluation = "loss" not in values and any(k.startswith("eval_") for k in values)
        if epoch is not None and not evaluation:
            if epoch < self._epoch and self._latest is not None:
                self._done, self._total = self._latest
            self._epoch = epoch
        kind = EVAL if evaluation else TRAIN
        own = values.pop("step", None)
        if own is not None or self._total is None:
            return [Piece(values, step=to_int(str(own)), epoch=epoch, kind=kind, note=note)]
        step = self._done or None
        if step is not None and glued and note and "grad_norm" not in values:
            step += 1  # a loop over the bar (LLaMA-Factory PPO) prints inside of the step that it counts next
        self._held = Piece(values, step=step, epoch=epoch, kind=kind, note=note)
        return []


def _quick(steps_per_s: str | None) -> bool:
    return (to_float(steps_per_s or "") or 0.0) > _DRAWN_PER_S / 2  # the rate shown is a mean


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
