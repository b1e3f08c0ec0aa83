"""A claim about FP8 and what measuring it gives; the verdict follows from the figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["true", "partly", "false"]


@dataclass(frozen=True)
class Figure:
    """One number that was measured.

    unit: "" for counts and ratios.  published: the range in which the figure is expected on any machine, None
    where it depends on the machine or the software.
    """

    name: str
    value: float
    unit: str = ""
    published: tuple[float, float] | None = None

    @property
    def is_as_published(self) -> bool:
        """Whether the figure lies where the page says; NaN does not."""
        return self.published is None or self.published[0] <= self.value <= self.published[1]


@dataclass(frozen=True)
class Statement:
    """A sentence that the figures confirm or refute."""

    sentence: str
    holds: bool


@dataclass(frozen=True)
class Measured:
    """What one measurement gave.

    claimed: the parts of the claim.  true: the parts of what is true instead; all of them should hold.
    says: what the page says of the claim with this machine's software, None if the fact's own verdict stands.
    note: a condition of this machine that explains a figure.
    """

    figures: tuple[Figure, ...]
    claimed: tuple[Statement, ...]
    true: tuple[Statement, ...]
    says: Verdict | None = None
    note: str = ""

    @property
    def verdict(self) -> Verdict:
        """Of the claim: true if all of its parts hold, false if none does, else partly."""
        return verdict_of(self.claimed)


@dataclass(frozen=True)
class Fact:
    """One claim: its name on the command line, what the page says of it, how to measure it."""

    name: str
    says: Verdict
    measure: Callable[[], Measured]


def verdict_of(parts: Sequence[Statement]) -> Verdict:
    """True if all parts hold, false if none does, else partly. Raises ValueError without parts."""
    if not parts:
        raise ValueError("a claim needs at least one part that can be tested")
    holding = sum(part.holds for part in parts)
    if holding == len(parts):
        return "true"
    return "partly" if holding else "false"


def contradictions(fact: Fact, found: Measured) -> list[str]:
    """Where the figures of this machine contradict the page, as sentences; empty if nowhere."""
    says = found.says or fact.says
    out = []
    if found.verdict != says:
        out.append(f"the page calls the claim {says}, the figures of this machine make it {found.verdict}")
    out += [f"does not hold here: {part.sentence}" for part in found.true if not part.holds]
    for figure in found.figures:
        if figure.published is not None and not figure.is_as_published:
            low, high = figure.published
            out.append(
                f"{figure.name}: {figure.value:g}, expected {low:g} to {high:g} {figure.unit}".rstrip()
            )
    return out
