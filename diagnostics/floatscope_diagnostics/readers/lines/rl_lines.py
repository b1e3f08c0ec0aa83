"""Reinforcement learning that prints lines: RSL-RL (Isaac) blocks under ``Learning iteration 10/1500`` with
``Value function loss: 0.01`` and ``Mean reward: 0.1``; Unity ML-Agents' ``3DBall. Step: 12000. ... Mean
Reward: 1.2.``.

Rewards and the losses of actor and critic keep their names: none has to fall.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import HELD, LineFormat
from floatscope_diagnostics.readers.numbers import NUMBER, to_float
from floatscope_diagnostics.readers.piece import Piece

_ITERATION = re.compile(r"\bLearning iteration (\d{1,12})/\d{1,12}\b")
_VALUE = re.compile(
    r"^\s{1,60}((?:Mean|Value|Surrogate|Entropy|Iteration|Total)[A-Za-z_ /]{0,60}|Computation):\s{1,4}"
    rf"({NUMBER})(?:s|\s|$)",
    re.I,
)
_AGENTS = re.compile(
    rf"\bStep: (\d{{1,12}})\. .{{0,60}}?Mean Reward: ({NUMBER})\.? Std of Reward: ({NUMBER})", re.I
)
_NOTE = "reinforcement learning: rewards and losses of actor and critic are not judged as a falling loss"


def certainty(head: Head) -> float:
    """Sure of an iteration's header or an agent's line."""
    return 0.95 if head.hits(_ITERATION) or head.hits(_AGENTS) else 0.0


class Parser:
    """Knows the iteration of the block."""

    def __init__(self) -> None:
        self._step: int | None = None

    def line(self, number: int, text: str) -> Iterable[Piece]:
        iteration = _ITERATION.search(text)
        if iteration:
            self._step = int(iteration[1])
            return HELD
        agent = _AGENTS.search(text)
        if agent:
            named = {"mean_reward": to_float(agent[2]), "std_reward": to_float(agent[3])}
            values = {k: v for k, v in named.items() if v is not None}
            return (Piece(values, step=int(agent[1]), note=_NOTE),)
        at = _VALUE.match(text)
        value = to_float(at[2]) if at else None
        if at is None or value is None or self._step is None or "iteration" in at[1].lower():
            return ()
        return (Piece({at[1].strip().lower().replace(" ", "_"): value}, step=self._step, note=_NOTE),)

    def end(self) -> Iterable[Piece]:
        return ()


FORMAT = LineFormat("rl_lines", "RSL-RL or ML-Agents output", certainty, Parser)
