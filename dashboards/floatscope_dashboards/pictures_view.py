"""What the pictures of a run's page show, as frozen objects that the server fills.

A number is None where nothing was logged; NaN and Inf are values that were logged.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TensorAt:
    """One tensor at one step.

    format: its name in the protocol, "" where it is not known.  amax, rms: of the values before they are
    scaled.  scale: what a value is multiplied by before the cast.  overflow_pct, underflow_pct: % of the
    values.  nan, inf: elements.  counts: values by exponent of two (-40 to 23), before they are scaled, taken
    at step ``sampled``, when the scale was ``sampled_scale``; None where no histogram is known.
    """

    name: str
    format: str
    amax: float | None = None
    rms: float | None = None
    scale: float | None = None
    overflow_pct: float | None = None
    underflow_pct: float | None = None
    nan: float | None = None
    inf: float | None = None
    amax_min_block: float | None = None
    counts: tuple[int, ...] | None = None
    sampled: int | None = None
    sampled_scale: float | None = None


@dataclass(frozen=True)
class RulerView:
    """Where the values of some tensors sit in their formats at one step.

    asked: the step asked for.  step: of the statistics shown, the newest at or before it; None without any.
    tensors: the worst first.  total: tensors with an amax at that step.  scaled: those of them in a format
    that takes a scale.  plain: format -> how many are in one that takes none.
    """

    asked: int | None
    step: int | None
    tensors: tuple[TensorAt, ...] = ()
    total: int = 0
    scaled: int = 0
    plain: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class FirstBad:
    """Where a tensor was first not finite.

    stat: what shows it: "values" of the tensor, its "scale", or of a weight the norm of its "gradient" or its
    "update".  nan, inf: elements at that step, None where they were not counted.  order: first forward call
    of its layer, None where it is not known.
    """

    step: int
    tensor: str
    stat: str
    nan: float | None = None
    inf: float | None = None
    order: int | None = None


@dataclass(frozen=True)
class BadGroup:
    """How many tensors of one role were first not finite at a step, by one statistic."""

    step: int
    role: str
    stat: str
    tensors: int


@dataclass(frozen=True)
class PathView:
    """What is known of how NaN and Inf spread, from the first step that has any.

    tensors: the first ones by step and call order, at most some hundred; groups: all of them, counted.
    scalars: name, step and "NaN" or "Inf" of those that were not finite.  counts: role -> tensors the run has
    of it.  rank: whose numbers these are.  ranks: how many the run has; looked_at: of how many it is known
    when theirs began; others: ranks that began at the same step.
    """

    first: int
    tensors: tuple[FirstBad, ...] = ()
    groups: tuple[BadGroup, ...] = ()
    scalars: tuple[tuple[str, int, str], ...] = ()
    counts: tuple[tuple[str, int], ...] = ()
    rank: int = 0
    ranks: int = 1
    looked_at: int = 1
    others: tuple[int, ...] = ()


@dataclass(frozen=True)
class RanksView:
    """Which scalars of the GPUs and of the pace there are, and how many ranks sent something."""

    names: tuple[str, ...] = ()
    ranks: int = 0


@dataclass(frozen=True)
class PicturesView:
    """The pictures of one run at one step."""

    step: int | None = None
    """Step of the ruler, None without one."""
    ruler: RulerView | None = None
    path: PathView | None = None
    ranks: RanksView | None = None
