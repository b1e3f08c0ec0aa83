"""Which tensors of a run are asked about, and what a run has stored of them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import translate
from functools import cached_property
from typing import Any

from floatscope.protocol.names import ROLES, split_tensor
from floatscope_diagnostics.readers.run_log import UnreadableLog

NO_HISTOGRAMS = (
    "has no histograms of its tensors, and without them nothing can be said about other formats. The agent "
    "samples them: at the first step that is looked at (setting stats_every, 50 steps by default, 0 is off), "
    "then at every tenth of those, and of suspect tensors more often. A file of values can be asked instead."
)


MOST_LETTERS, MOST_WILDCARDS = 256, 16
"""Of a pattern, so that none is slow on the names of a large run."""


class Pattern:
    """Matches names: ``*`` stands for any letters, also dots and slashes, ``?`` for one. A name spelt just so
    is always meant.

    Raises ValueError, which says what may be, for a pattern out of bounds.
    """

    def __init__(self, text: str) -> None:
        wildcards = text.count("*") + text.count("?")
        if wildcards and (len(text) > MOST_LETTERS or wildcards > MOST_WILDCARDS):
            raise ValueError(
                f"a name, or a pattern of at most {MOST_LETTERS} letters and {MOST_WILDCARDS} of * and ?"
            )
        self.text = text
        self._like = re.compile(translate(text.replace("[", "[[]"))) if wildcards else None

    def takes(self, name: str) -> bool:
        """Whether the name is meant."""
        return name == self.text or (self._like is not None and self._like.match(name) is not None)


@dataclass(frozen=True)
class Selection:
    """tensor, layer: as ``Pattern``; raises its ValueError.  role: of ROLES.  step: None for the newest."""

    tensor: str | None = None
    layer: str | None = None
    role: str | None = None
    step: int | None = None

    def __post_init__(self) -> None:
        for what, text in (("tensor", self.tensor), ("layer", self.layer)):
            try:
                _pattern(text)
            except ValueError as error:
                raise ValueError(f"{what}: expected {error}") from error

    def takes(self, name: str) -> bool:
        """Whether a tensor is asked about."""
        layer, role = split_tensor(name)
        tensors, layers = self._patterns
        return (
            (tensors is None or tensors.takes(name))
            and (layers is None or layers.takes(layer))
            and (self.role is None or self.role == role)
        )

    @cached_property
    def _patterns(self) -> tuple[Pattern | None, Pattern | None]:
        return _pattern(self.tensor), _pattern(self.layer)

    @property
    def is_everything(self) -> bool:
        """Whether nothing narrows the question."""
        return self.tensor is None and self.layer is None and self.role is None


def _pattern(text: str | None) -> Pattern | None:
    return None if text is None else Pattern(text)


@dataclass(frozen=True, eq=False)
class Stored:
    """What a run has of one tensor.  step: of the histogram; stats_step: of the oldest other number."""

    name: str
    step: int
    counts: list[int]
    stats: Mapping[str, float | None] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    stats_step: int | None = None


def check_found(found: Iterable[str], known: Iterable[str], selection: Selection) -> None:
    """Raises UnreadableLog if nothing was found, saying what there is.

    found: tensors with a histogram that were asked for.  known: all tensors of the run.
    """
    if any(True for _ in found):
        return
    names = sorted(set(known))
    asked = [name for name in names if selection.takes(name)]
    if asked:
        when = "" if selection.step is None else f" near step {selection.step}"
        more = f" and {len(asked) - 1} more" if len(asked) > 1 else ""
        raise UnreadableLog(f"no histogram of {asked[0]}{more} was sampled{when}; other tensors have some")
    if not names:
        raise UnreadableLog(NO_HISTOGRAMS)
    raise UnreadableLog(f"no tensor of the run is {_words(selection)}; {_near(names, selection)}")


def _words(selection: Selection) -> str:
    parts = [
        f"{what} {value!r}"
        for what, value in (
            ("named", selection.tensor),
            ("of layer", selection.layer),
            ("of role", selection.role),
        )
        if value is not None
    ]
    return " and ".join(parts)


def _near(names: list[str], selection: Selection) -> str:
    if selection.tensor is not None:
        near = difflib.get_close_matches(selection.tensor, names, n=5, cutoff=0.3) or names[:5]
        return f"near names: {', '.join(near)}"
    if selection.layer is not None:
        layers = sorted({split_tensor(name)[0] for name in names})
        near = difflib.get_close_matches(selection.layer, layers, n=5, cutoff=0.3) or layers[:5]
        return f"near layers: {', '.join(near)}"
    roles = sorted({split_tensor(name)[1] for name in names} & set(ROLES))
    return f"it has {', '.join(roles) or 'tensors without a role'}"
