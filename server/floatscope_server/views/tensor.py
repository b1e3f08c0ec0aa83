"""Fills the view of one tensor's page from the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Connection

from floatscope.protocol.formats import FORMATS
from floatscope.protocol.names import split_tensor
from floatscope.protocol.runinfo import RunInfo
from floatscope_dashboards.tensor_view import (
    NO_STATS,
    RankSpread,
    ScaleHistory,
    TensorLine,
    TensorRun,
    TensorView,
)
from floatscope_diagnostics.columns import CURRENT, DELAYED_MAX, DELAYED_RECENT, margin_bits
from floatscope_server.derived import DERIVED, needs
from floatscope_server.routes import reading
from floatscope_server.services import Services
from floatscope_server.shadow_scale import rule_of
from floatscope_server.store import frame_reads, kinds, raw, runs, series_reads
from floatscope_server.store.frame_reads import Picture
from floatscope_server.store.runs import RunRecord
from floatscope_server.store.stretches import Span
from floatscope_server.views.near_names import near_names
from floatscope_server.views.tensor_order import TensorColumns, network_order, tensor_columns
from floatscope_server.views.tensor_what_if import tensor_what_if
from floatscope_server.views.tensors import picture_at, ranks_with_stats, shown_ranks, tensor_run

MOST_RANKS = 64  # over which the spread is taken
MOST_CELLS = 4_000_000  # values of last frames that are decoded for it
MOST_SIBLINGS = 24
LOOK_BACK_STEPS = 512  # for what statistics it has, and how often
MOST_RECENT_CELLS = 2_000_000  # values of batches that are decoded for that
_KINDS = {CURRENT: "current", DELAYED_MAX: "max", DELAYED_RECENT: "most_recent"}


@dataclass(frozen=True)
class NoSuchTensor:
    """The run has no tensor of that name. near: names that look alike, best first."""

    run: TensorRun
    name: str
    near: tuple[str, ...]
    total: int


def tensor_view(
    c: Connection,
    run: RunRecord,
    name: str,
    *,
    at: int | None,
    rank: int | None,
    verdict: Mapping[str, Any],
    services: Services,
) -> TensorView | NoSuchTensor:
    """The page of one tensor at a step (default the last) of a rank (default the lowest that has it)."""
    known = runs.series(c, run.id)
    has = ranks_with_stats(known)
    described = services.descriptions.get(c, run)
    pictures = _pictures(c, run, has, described, services)
    with_it = [number for number, picture in pictures.items() if raw.column(picture.names, name) is not None]
    if name not in described.tensors and not with_it:
        names = {*described.tensors, *(n for picture in pictures.values() for n in picture.names)}
        return NoSuchTensor(tensor_run(run), name, near_names(name, names), len(names))
    gone = rank is not None and bool(has) and rank not in has
    lowest = with_it[0] if with_it else reading.rank_of(None, has)
    chosen = lowest if rank is None or gone else rank
    source = reading.source(c, services, run, chosen)
    last = pictures.get(chosen) or frame_reads.last(source, segment=None, tensors=described.tensors)
    columns = _columns(run, last, described, services)
    place = columns.names.index(name) if name in columns.names else None
    shown = last if at is None else picture_at(source, at, known, described.tensors)
    now = columns if shown is last else _columns(run, shown, described, services)
    line = _line(now, name)
    worst = columns.worst.tolist()
    rank_of_it = None if place is None or line.state == NO_STATS else worst.index(place)
    step = None if shown is None else shown.step
    recent = _recent(source, run, name, reading.stored_stats(known))
    return TensorView(
        run=tensor_run(run),
        line=line,
        step=step,
        asked_at=at,
        call_order=_whole(described.tensors.get(name, {}).get("call_order")),
        calls=len({row.get("call_order") for row in described.tensors.values() if "call_order" in row}),
        shape=_shape(described.tensors.get(name, {}).get("shape")),
        place=None if rank_of_it is None else rank_of_it + 1,
        of=len(worst),
        previous=_beside(columns, worst, rank_of_it, -1),
        next=_beside(columns, worst, rank_of_it, 1),
        rank=chosen,
        ranks=shown_ranks(with_it or has, chosen),
        history=_history(described, name, several=_several(source, run, known)),
        every={stat: distance for stat, distance in recent.items() if distance},
        stats=_stats(tuple(recent), described.tensors.get(name, {})),
        verdict=verdict,
        siblings=_siblings(now, name),
        spread=_spread(pictures, name, len(has)),
        what_if=tensor_what_if(c, services, run, line, step=step, at=at, rank=chosen, known=known),
        limits=_limits(line.format),
        corrected=("rank",) if gone else (),
    )


def _columns(
    run: RunRecord, picture: Picture | None, described: RunInfo, services: Services
) -> TensorColumns:
    order = network_order(run, picture, described.tensors, services.warm)
    return tensor_columns(picture, described.tensors, order=order)


def _pictures(
    c: Connection, run: RunRecord, ranks: Sequence[int], described: RunInfo, services: Services
) -> dict[int, Picture]:
    """The last frames of some ranks: fewer where they are large."""
    found: dict[int, Picture] = {}
    cells = 0
    for rank in shown_ranks(ranks, ranks[0] if ranks else 0)[:MOST_RANKS]:
        if cells > MOST_CELLS or not ranks:
            break
        source = reading.source(c, services, run, rank)
        picture = frame_reads.last(source, segment=None, tensors=described.tensors)
        if picture is not None:
            found[rank] = picture
            cells += len(picture.names) * len(picture.stats)
    return found


def _line(columns: TensorColumns, name: str) -> TensorLine:
    if name in columns.names:
        return columns.line(columns.names.index(name))
    layer, role = split_tensor(name)  # it was not there yet at that step
    return TensorLine(name, layer, role, "", "", NO_STATS, {})


def _beside(columns: TensorColumns, worst: Sequence[int], at: int | None, by: int) -> str | None:
    if at is None or not 0 <= at + by < len(worst):
        return None
    return columns.names[worst[at + by]]


def _history(described: RunInfo, name: str, *, several: bool) -> ScaleHistory:
    rule = rule_of(described, name)
    reduced = (described.ranks or 1) > 1 and described.recipe.get("reduce_amax") is not False
    return ScaleHistory(
        _KINDS.get(rule.kind, ""),
        rule.history,
        margin_bits(described.recipe) or 0.0,
        reduced,
        several,
    )


def _several(source: raw.Source, run: RunRecord, known: Mapping[tuple[int, str], object]) -> bool:
    """Whether some step of the rank had more than one forward pass."""
    if (kinds.SCALARS, "passes") not in known:
        return False
    seen = series_reads.view(source, Span(0, run.last_step or 0))
    level = series_reads.scalars(seen, ["passes"], 1)["passes"]
    return len(level.bins) > 0 and bool(np.nanmax(level.maximum) > 1)


def _recent(source: raw.Source, run: RunRecord, name: str, stored: Sequence[str]) -> dict[str, int]:
    """Statistic that the tensor has lately -> steps between its newest values, 0 for a single one."""
    last = run.last_step or 0
    seen = series_reads.view(source, Span(max(0, last - LOOK_BACK_STEPS), last), with_tensors=True)
    pieces, cells = [], 0
    for piece in reversed(seen.pieces):
        if cells > MOST_RECENT_CELLS:
            break
        pieces.append(piece)
        if piece.chunk is None:  # its blocks hold every tensor
            cells += piece.rows * len(source.tensor_names(piece))
    pieces.reverse()
    found: dict[str, int] = {}
    for stat in stored:
        steps: list[int] = []
        for rows in raw.stats(source, stat, (stat,), pieces, tensor=name, tensors={}):
            there = slice(None) if rows.present is None else rows.present[:, 0]
            steps += rows.step[there].tolist()
        if steps:
            each = np.unique(steps)
            found[stat] = int(np.median(np.diff(each))) if len(each) > 1 else 0
    return found


def _stats(recent: tuple[str, ...], row: Mapping[str, Any]) -> tuple[str, ...]:
    """With those that follow from them, which need a format that takes a scale."""
    if not _limits(str(row.get("format") or "")):
        return recent
    return (*recent, *(stat for stat in DERIVED if stat not in recent and needs(stat, recent)))


def _siblings(columns: TensorColumns, name: str) -> tuple[TensorLine, ...]:
    """Other tensors of the same layer."""
    layer = split_tensor(name)[0]
    found = [at for at, other in enumerate(columns.names) if other.startswith(f"{layer}/") and other != name]
    found = [at for at in found if split_tensor(columns.names[at])[0] == layer]
    return tuple(columns.line(at) for at in found[:MOST_SIBLINGS])


def _spread(pictures: Mapping[int, Picture], name: str, ranks: int) -> RankSpread | None:
    """The tensor's amax over ranks at their newest common step; None of fewer than two."""
    found: list[tuple[int, float, int]] = []
    for rank, picture in pictures.items():
        at, frame = raw.column(picture.names, name), picture.stats.get("amax")
        if at is not None and frame is not None and frame.present[at]:
            found.append((frame.step, float(frame.values[at]), rank))
    if len(found) < 2:
        return None
    steps = [step for step, _amax, _rank in found]
    step = max(set(steps), key=lambda one: (steps.count(one), one))
    here = sorted((amax, rank) for at, amax, rank in found if at == step and not np.isnan(amax))
    if len(here) < 2:
        return None
    (low, low_rank), (high, high_rank) = here[0], here[-1]
    return RankSpread(step, low, low_rank, high, high_rank, len(here), max(0, ranks - len(here)))


def _limits(name: str) -> dict[str, float]:
    found = FORMATS.get(name)
    if found is None or not found.is_scaled:
        return {}
    return {
        "max": found.max_finite,
        "min_normal": found.min_normal,
        "min_subnormal": found.min_subnormal,
    }


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _shape(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > 8:
        return ()
    whole = [_whole(size) for size in value]
    return tuple(size for size in whole if size is not None) if None not in whole else ()
