"""Boxes of two columns printed by reinforcement learning: stable-baselines 2 and 3, OpenAI baselines,
spinning up.

``| ep_rewmean         | nan           |``: one box between lines of dashes is one record. The losses of actor
and critic do not have to fall: all names stay. Episode means are nan until an episode has ended, the
explained variance where the returns are constant: those are left out.

Guided diffusion prints its supervised training through the same logger (``loss``, ``loss_q0`` to
``loss_q3`` by quarter of the noise): that loss has to fall.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import HELD, LineFormat
from floatscope_diagnostics.readers.numbers import to_float, whole
from floatscope_diagnostics.readers.piece import Piece

_RULE = re.compile(r"^\s{0,8}-{10,400}\s{0,8}$")
_CELL = re.compile(
    r"^\s{0,8}\|\s{0,40}([A-Za-z%][\w %/.()-]{0,80}?)\s{0,80}\|\s{0,40}([^|]{0,60}?)\s{0,60}\|\s{0,8}$"
)
_KNOWN = re.compile(
    r"\|\s{0,40}(?:ep_?rew_?mean|ep_?len_?mean|explained_variance|total_?timesteps|nupdates|"
    r"policy_entropy|value_loss|EpRewMean|TimestepsSoFar|AverageEpRet|"
    r"TotalEnvInteracts|n_updates|(?:loss|mse)_q\d|approx_?kl|rollout/\S{0,40})\s{0,80}\|"
)
_STEPS = (
    "total_timesteps", "time/total_timesteps", "timestepssofar", "totalenvinteracts", "steps",
    "total timesteps", "nupdates", "epoch", "step",
)  # fmt: skip
_PLACEHOLDER = re.compile(r"(?:^|/)(?:ep_?rew|ep_?len|ep_?ret|explained_variance|success_rate)", re.I)
_NOTE = "reinforcement learning: rewards and losses of actor and critic are not judged as a falling loss"
_NO_EPISODE = "nan of an episode mean (no episode ended, or no monitor around the environment) is left out"


def certainty(head: Head) -> float:
    """Sure of a box with names of these libraries."""
    return 0.9 if head.hits(_KNOWN) and head.hits(_RULE) else 0.6 if head.hits(_KNOWN) > 1 else 0.0


class Parser:
    """Gathers a box."""

    def __init__(self) -> None:
        self._box: dict[str, float] = {}
        self._section = ""

    def line(self, number: int, text: str) -> Iterable[Piece]:
        if _RULE.match(text):
            return self.end() or HELD
        cell = _CELL.match(text)
        if cell is None:
            return ()
        if not cell[2]:
            self._section = cell[1] if cell[1].endswith("/") else ""
            return HELD
        value = to_float(cell[2])
        if value is not None:
            self._box[self._section + cell[1]] = value
        return HELD

    def end(self) -> tuple[Piece, ...]:
        box, self._box, self._section = self._box, {}, ""
        if not box:
            return ()
        lower = {name.lower(): name for name in box}
        counted = next((box[lower[s]] for s in _STEPS if s in lower), None)
        masked = {n for n, v in box.items() if math.isnan(v) and _PLACEHOLDER.search(n)}
        if any(n.startswith(("loss_q", "mse_q")) for n in box):
            return (Piece({k: v for k, v in box.items() if k != "step"}, step=whole(counted)),)
        values = {_own(n): v for n, v in box.items() if n not in masked}
        step = whole(counted)
        out = Piece(values, step=step, note=_NOTE)
        return (out, Piece(step=step, note=_NO_EPISODE, kind="event")) if masked else (out,)


def _own(name: str) -> str:
    """The learning rate is ours; a bare ``loss`` is that of a critic or actor."""
    if name.rpartition("/")[2] in ("learning_rate", "lr"):
        return "lr"
    return "rl/loss" if name == "loss" else name


FORMAT = LineFormat("rl_table", "table of stable-baselines, baselines or guided diffusion", certainty, Parser)
