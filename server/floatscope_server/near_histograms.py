"""The histograms of tensors nearest to a step, each with the statistics of its own step."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from floatscope_diagnostics.whatif.stored import READ_STATS
from floatscope_server.store import frame_reads, kinds, raw, ruler_reads, series_reads
from floatscope_server.store.frame_reads import Picture
from floatscope_server.store.raw import Source
from floatscope_server.store.stretches import Span

Known = Mapping[tuple[int, str], tuple[int, ...]]
"""Of ``runs.series``."""


@dataclass(frozen=True)
class NearHistogram:
    """counts: [64], by exponent.  stats: finite statistics by name, taken at ``stats_step``, the newest up to
    ``step``; empty, with None, where there are none.
    """

    step: int
    counts: tuple[int, ...]
    stats_step: int | None
    stats: Mapping[str, float]


def near_histograms(
    source: Source, names: Collection[str], *, at: int, known: Known
) -> Mapping[str, NearHistogram]:
    """Of those of the tensors of which one is near; one from before is preferred to one as far after. Raises
    Damaged.
    """
    seen = series_reads.view(source, Span(0, at), with_tensors=True)
    stored = tuple(stat for stat in READ_STATS if (kinds.STAT, stat) in known)
    pictures: dict[int, Picture | None] = {}
    out = {}
    for name, one in ruler_reads.sampled(seen, names, at=at).items():
        if one.step not in pictures:
            before = series_reads.view(source, Span(0, one.step), with_tensors=True)
            pictures[one.step] = frame_reads.at_or_before(before, stored=stored, tensors={})
        picture = pictures[one.step]
        stats = {} if picture is None else _stats(picture, name)
        step = picture.step if picture is not None and stats else None
        out[name] = NearHistogram(one.step, one.counts, step, stats)
    return out


def _stats(picture: Picture, name: str) -> dict[str, float]:
    at = raw.column(picture.names, name)
    if at is None:
        return {}
    values = {stat: float(f.values[at]) for stat, f in picture.stats.items() if f.present[at]}
    return {stat: value for stat, value in values.items() if math.isfinite(value)}
