"""The tensors of a run at one step as columns: their state, and the order worst first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.batch import Bool, Float64, Int64
from floatscope.protocol.names import split_tensor
from floatscope_dashboards.tensor_view import (
    CLIPS,
    CLIPS_FROM_PCT,
    FITS,
    FLUSHES,
    FLUSHES_FROM_PCT,
    NO_STATS,
    NONFINITE,
    TENSOR_STATES,
    UNSCALED,
    TensorLine,
)
from floatscope_server.routes import reading
from floatscope_server.store.frame_reads import Picture
from floatscope_server.store.runs import RunRecord
from floatscope_server.store.warm import Warm

BYTES_A_NAME = 64
"""About what a name takes that is remembered: it is kept alive here when its tensor table is forgotten. Not
more, since the order of 100,000 must still fit.
"""
_STATE_OF = {name: number for number, name in enumerate(TENSOR_STATES)}


@dataclass(frozen=True, eq=False)
class TensorColumns:
    """Every tensor that is described or has statistics, in the order of the network.

    stats: statistic -> values [S], NaN where ``has`` is False (a NaN that was sent has True). state: index
    into TENSOR_STATES [S]. worst: places of the tensors, worst first.
    """

    names: Sequence[str]
    described: Mapping[str, Mapping[str, Any]]
    stats: Mapping[str, Float64]
    has: Mapping[str, Bool]
    state: Int64
    worst: Int64

    def line(self, at: int) -> TensorLine:
        """One tensor as the pages show it."""
        name = self.names[at]
        layer, role = split_tensor(name)
        row = self.described.get(name, {})
        values = {stat: float(values[at]) for stat, values in self.stats.items() if self.has[stat][at]}
        return TensorLine(
            name=name,
            layer=layer,
            role=role,
            format=str(row.get("format") or ""),
            recipe=str(row.get("recipe") or ""),
            state=TENSOR_STATES[int(self.state[at])],
            values=values,
        )


def network_order(
    run: RunRecord, picture: Picture | None, described: Mapping[str, Mapping[str, Any]], warm: Warm
) -> Sequence[str]:
    """The picture's tensors and those that are only described, as the network uses them. Remembered: of
    100,000 the order takes longer than all the rest of a page.
    """
    seen = tuple(picture.names) if picture is not None else ()
    key = ("tensor_order", run.id, run.described, seen)
    known: Sequence[str] | None = warm.get(key)
    if known is None:
        known = _in_order(seen, described)
        warm.keep(key, known, BYTES_A_NAME * len(known))
    return known


def _in_order(seen: Sequence[str], described: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return sorted({*described, *seen}, key=lambda name: reading.order(name, described.get(name, {})))


def tensor_columns(
    picture: Picture | None,
    described: Mapping[str, Mapping[str, Any]],
    *,
    order: Sequence[str] | None = None,
) -> TensorColumns:
    """The picture's tensors and those that are only described. order: of them, see ``network_order``."""
    seen = picture.names if picture is not None else ()
    names = _in_order(seen, described) if order is None else order
    place = {name: at for at, name in enumerate(names)}
    where = np.array([place[name] for name in seen], np.int64)
    stats: dict[str, Float64] = {}
    has: dict[str, Bool] = {}
    for stat, frame in (picture.stats if picture is not None else {}).items():
        values, there = np.full(len(names), np.nan), np.zeros(len(names), bool)
        values[where] = np.where(frame.present, frame.values, np.nan)
        there[where] = frame.present
        stats[stat], has[stat] = values, there
    state = _states(stats, has, len(names))
    return TensorColumns(names, described, stats, has, state, _worst_first(stats, state))


def _states(stats: Mapping[str, Float64], has: Mapping[str, Bool], count: int) -> Int64:
    none = np.full(count, np.nan)
    some = np.zeros(count, bool)
    for there in has.values():
        some |= there
    odd = np.zeros(count, bool)
    for stat in ("nan_count", "inf_count"):
        odd |= np.nan_to_num(stats.get(stat, none), nan=0.0) > 0
    for stat in ("amax", "rms", "scale"):
        odd |= has.get(stat, np.zeros(count, bool)) & ~np.isfinite(stats.get(stat, none))
    clipped, headroom = stats.get("overflow_pct", none), stats.get("headroom_log2", none)
    with np.errstate(invalid="ignore"):
        clips = np.where(np.isnan(clipped), headroom < 0, clipped >= CLIPS_FROM_PCT)
        flushes = stats.get("underflow_pct", none) >= FLUSHES_FROM_PCT
    found = np.full(count, _STATE_OF[FITS])
    casts = [has[stat] for stat in ("overflow_pct", "underflow_pct", "headroom_log2", "sat") if stat in has]
    found[~np.logical_or.reduce(casts) if casts else slice(None)] = _STATE_OF[UNSCALED]
    found[flushes] = _STATE_OF[FLUSHES]
    found[clips] = _STATE_OF[CLIPS]
    found[odd] = _STATE_OF[NONFINITE]
    found[~some] = _STATE_OF[NO_STATS]
    return found


def _worst_first(stats: Mapping[str, Float64], state: Int64) -> Int64:
    """By state, then share clipped, share that becomes 0, least headroom; then as the network uses them."""
    keys: list[NDArray[Any]] = [_key(stats, "headroom_log2", low=True, size=len(state))]
    keys += [_key(stats, stat, low=False, size=len(state)) for stat in ("underflow_pct", "overflow_pct")]
    return np.lexsort([*keys, state])


def _key(stats: Mapping[str, Float64], stat: str, *, low: bool, size: int) -> Float64:
    """Ascending from worst to best; what is missing comes last."""
    values = stats.get(stat)
    if values is None:
        return np.zeros(size)
    return np.where(np.isnan(values), np.inf, values if low else -values)


def sorted_by(columns: TensorColumns, stat: str, *, descending: bool) -> Int64:
    """Places of the tensors by one statistic; those that lack it come last, and NaN first: it is worst."""
    if stat == "name":
        order = np.argsort(np.array(columns.names, object), kind="stable")
        return order[::-1] if descending else order
    values = columns.stats.get(stat)
    if values is None:
        return columns.worst
    has = columns.has[stat]
    size = np.where(np.isnan(values), np.inf, -values if descending else values)
    return np.lexsort([size, ~(np.isnan(values) & has), ~has])
