"""Reads the shadow scale of one tensor: every amax that it is made from, never a bin of them."""

from __future__ import annotations

import numpy as np

from floatscope.protocol.batch import Bool, Float64, Int64
from floatscope.protocol.runinfo import RunInfo
from floatscope_server.errors import Refused
from floatscope_server.levels import Level, summarise
from floatscope_server.reduce import bin_width
from floatscope_server.shadow_scale import SCRATCH_STEPS, rule_of, shadow_scale
from floatscope_server.store import raw, series_reads, stretches
from floatscope_server.store.raw import Source
from floatscope_server.store.stretches import Span

MOST_STEPS = 400_000
"""Rows read for one answer: a recipe's window reaches back over all of them."""
SPARE_STEPS = 256
"""Read before the window: passes with amax 0 take no place in it."""


def series(source: Source, span: Span, tensor: str, points: int, *, described: RunInfo) -> tuple[Level, int]:
    """The shadow scale in at most ``points`` bins, and the first step of the span that may count.

    Steps at which it is not known are left out. Raises Refused for a span of too many steps.
    """
    rule = rule_of(described, tensor)
    wider = Span(max(0, span.first - 2 * rule.history - SPARE_STEPS), span.last, span.segment)
    seen = series_reads.view(source, wider, with_tensors=True)
    if sum(piece.rows for piece in seen.pieces) > MOST_STEPS:
        raise Refused(
            "from",
            f"a span of at most {MOST_STEPS:,} steps for the shadow scale",
            f"{span.first:,} to {span.last:,}",
        )
    step, segment, amax = _amaxes(seen, tensor)
    single = ~_is_of_several(seen, step)
    from_scratch = _begins_at_once(source, seen) and bool(single[:1].all())
    step, segment, amax = step[single], segment[single], amax[single]
    values, known = shadow_scale(step, segment, amax, rule, from_scratch=from_scratch)
    known &= step >= span.first
    step, values = step[known], values[known]
    if not len(step):
        none, whole = np.empty((1, 0)), np.empty((1, 0), np.int64)
        return Level(1, step, none, none, whole, whole, whole, none, none), span.first
    width = 1
    if len(step) > points:
        width = bin_width(int(step[0]), int(step[-1]), points)
    return summarise(step, values[:, None], None, width), span.first


def _amaxes(seen: series_reads.View, tensor: str) -> tuple[Int64, Int64, Float64]:
    """Steps, segments and values of every amax that counts."""
    of_piece = seen.of_piece()
    parts: list[tuple[Int64, Int64, Float64]] = []
    for found in raw.stats(seen.source, "amax", ("amax",), seen.pieces, tensor=tensor, tensors={}):
        inside = of_piece.get(found.piece.number)
        if inside is None:
            continue
        good = stretches.which(found.step, found.step, inside)[1]
        if found.present is not None:
            good &= found.present[:, 0]
        here = found.step[good]
        parts.append((here, np.full(len(here), found.piece.segment), found.values[good, 0].astype(float)))
    if not parts:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)
    step, segment, amax = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.argsort(step, kind="stable")
    return step[order], segment[order], amax[order]


def _begins_at_once(source: Source, seen: series_reads.View) -> bool:
    """Whether the view begins where the rank does: with its first segment, from scratch."""
    return bool(seen.pieces) and seen.first <= SCRATCH_STEPS and seen.stretches[0].piece.segment == 0


def _is_of_several(seen: series_reads.View, step: Int64) -> Bool:
    """Whether each step is of more than one forward pass, or beside one: of the amaxes of several passes only
    the largest is known, which is a gap.
    """
    level = series_reads.scalars(seen, ["passes"], 1)["passes"]
    if not len(level.bins) or not bool(np.nanmax(level.maximum) > 1):
        return np.zeros(len(step), bool)
    each = series_reads.scalars(seen, ["passes"], MOST_STEPS)["passes"]
    return np.isin(step // each.width, each.bins[each.maximum[0] > 1])
