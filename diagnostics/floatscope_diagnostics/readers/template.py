"""A line that was understood once, as a pattern: lines of the same make are then read without looking for
names again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from floatscope_diagnostics.readers.names import normal
from floatscope_diagnostics.readers.piece import EVAL, TRAIN
from floatscope_diagnostics.readers.words import VALUE, is_eval

MOST = 8
MAX_LEARNT = 200  # of one log; a log whose lines differ more than this is read line by line
POSITIONS = ("step", "epoch", "batch", "batches")
_PIECES = re.compile(r"\s+|\d[\d.,:]*|[^\s\d]+")
_REWARDS = frozenset(("reward", "return", "actor", "critic", "rewmean", "episode"))
_RL = "rewards are logged: the loss is kept as policy_loss and not judged as one that should fall"
_GAN = "two losses that play against each other: not judged as a falling loss"
_SIDES = {"d": "d", "g": "g", "dis": "d", "gen": "g", "disc": "d", "discriminator": "d", "generator": "g",
          "critic": "d"}  # fmt: skip


@dataclass(frozen=True)
class Slot:
    """A number of the line. name: of a position or value.  factor: of its unit."""

    start: int
    end: int
    name: str
    factor: float


class Template:
    """The text of one line with its numbers open.

    place: (number of the slot, name) of positions.  values: (number, name, factor) of values.  kind: of the
    piece.  note: a remark where the losses are not ones that should fall.
    """

    def __init__(self, text: str, slots: Sequence[Slot]) -> None:
        self._line = text
        self._slots = tuple(slots)
        self.place = tuple((k, s.name) for k, s in enumerate(slots) if s.name in POSITIONS)
        named = [(k, s.name, s.factor) for k, s in enumerate(slots) if s.name not in POSITIONS]
        self.note = _remark([name for _, name, _ in named])
        loss = "policy_loss" if self.note == _RL else "loss"
        self.values = tuple((k, loss if name == "loss" else name, factor) for k, name, factor in named)
        self.kind = EVAL if named and all(is_eval(name) for _, name, _ in named) else TRAIN

    @property
    def numbers(self) -> tuple[str, ...]:
        """Those of the line it was made from."""
        return tuple(self._line[s.start : s.end] for s in self._slots)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        parts = ["^"]
        at = 0
        for slot in self._slots:
            parts.append(_literal(self._line[at : slot.start]))
            parts.append(f"({VALUE})")
            at = slot.end
        parts.append(_literal(self._line[at:]) + "$")
        return re.compile("".join(parts), re.I)

    def read(self, text: str) -> tuple[str, ...] | None:
        """The numbers of a line of this make, else None."""
        match = self._pattern.match(text)
        return None if match is None else match.groups()


def _literal(text: str) -> str:
    """A pattern of text in which blanks and digits may differ."""
    out = []
    for piece in _PIECES.findall(text):
        if piece[0].isspace():
            out.append(r"\s{1,40}")
        elif piece[0].isdigit():
            out.append(r"\d[\d.,:]{0,40}")
        else:
            out.append(re.escape(piece))
    return "".join(out)


def _remark(names: Sequence[str]) -> str | None:
    words = {word for name in names for word in normal(name).split("_")}
    if "loss" in names:
        return None if _REWARDS.isdisjoint(words) else _RL
    return _GAN if {_side(normal(n).split("_")) for n in names} >= {"d", "g"} else None


def _side(parts: list[str]) -> str | None:
    """``d`` or ``g`` for the loss of a discriminator or generator."""
    if "loss" not in parts or len(parts) != 2:
        return None
    return _SIDES.get(parts[0] if parts[1] == "loss" else parts[1])
