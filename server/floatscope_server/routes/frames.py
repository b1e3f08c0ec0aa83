"""The tensors of a run: which there are, and all their statistics at one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from floatscope.protocol.names import MAX_STEP, split_tensor
from floatscope_server import caching
from floatscope_server.answers import Json, Numbers, spelled
from floatscope_server.derived import DERIVED, needs
from floatscope_server.routes import fields, reading
from floatscope_server.routes.fields import RankQuery, RunId, Segment
from floatscope_server.services import Use
from floatscope_server.store import frame_reads, kinds, runs, series_reads, stretches
from floatscope_server.store.frame_reads import Histograms, Picture
from floatscope_server.store.stretches import Span

router = APIRouter(tags=["tensors"])

MOST_RANKS = 64  # of which is looked up which tensors they have: some twenty queries each
MAX_HISTOGRAMS = 4_096  # tensors of one answer: 64 counts each


@router.get("/runs/{run_id}/tensors", response_class=Json)
def tensors(request: Request, run_id: RunId, services: Use) -> Response:
    """The run's tensors in the order of the network, with what is known of each, the statistics and the ranks
    that have it, and its last values.

    Of more than 64 ranks only 64 are looked at, the first, the last and others evenly between them;
    ``ranks_left_out`` says how many are not, and ``ranks`` names none of those.
    """
    with services.database.read() as c:
        run = runs.get(c, run_id)
        headers = caching.of_run(request, run)
        described = services.descriptions.get(c, run).tensors
        stored = reading.stored_stats(runs.series(c, run.id))
        stats_of: dict[str, set[str]] = {}
        ranks_of: dict[str, list[int]] = {}
        last: dict[str, dict[str, Any]] = {}
        ranks = sorted(position.rank for position in runs.positions(c, run.id))
        looked_at = _spread(ranks, MOST_RANKS)
        for rank in looked_at:
            source = reading.source(c, services, run, rank)
            pieces = stretches.pieces(c, run.id, rank, Span(0, MAX_STEP))
            for name, stats in frame_reads.stats_of(source, pieces, stored).items():
                stats_of.setdefault(name, set()).update(stats)
                ranks_of.setdefault(name, []).append(rank)
            picture = frame_reads.last(source, segment=None, tensors=described)
            for name, values in ({} if picture is None else _by_tensor(picture)).items():
                last.setdefault(name, values)
    items = []
    for name in sorted({*described, *stats_of}, key=lambda n: reading.order(n, described.get(n, {}))):
        layer, role = split_tensor(name)
        have = tuple(stats_of.get(name, ()))
        derived = [stat for stat in DERIVED if stat not in have and needs(stat, have)]
        items.append(
            {
                **described.get(name, {}),
                "name": name,
                "layer": layer,
                "role": role,
                "stats": sorted([*have, *derived]),
                "ranks": ranks_of.get(name, []),
                "last": last.get(name, {}),
            }
        )
    left_out = len(ranks) - len(looked_at)
    said = {"ranks_left_out": left_out} if left_out else {}
    return Json({"items": items, "next_cursor": None, **said}, headers=headers)


@router.get("/runs/{run_id}/frame", response_class=Json)
def frame(
    request: Request,
    run_id: RunId,
    services: Use,
    step: Annotated[int | None, Query(ge=0, le=MAX_STEP, description="Default: the last.")] = None,
    tensor: Annotated[str | None, Query(max_length=4096, description="Only this one.")] = None,
    histograms: Annotated[bool, Query(description="Also hist_log2, where it was sampled.")] = False,
    rank: RankQuery = None,
    segment: Segment = None,
) -> Response:
    """Every statistic of every tensor at one step: the newest at or before ``step`` that has statistics.

    ``stats`` has a value per tensor, null where there is none, and the step it is of.
    """
    with services.database.read() as c:
        run = runs.get(c, run_id)
        headers = caching.of_run(request, run)
        known = runs.series(c, run.id)
        stored = reading.stored_stats(known)
        has = sorted({at for (kind, _), ranks in known.items() if kind == kinds.STAT for at in ranks})
        source = reading.source(c, services, run, reading.rank_of(rank, tuple(has)))
        described = services.descriptions.get(c, run).tensors
        found = frame_reads.last(source, segment=segment, tensors=described) if step is None else None
        counts: Histograms | None = None
        if found is None or histograms:
            span = Span(0, MAX_STEP if step is None else step, segment)
            seen = series_reads.view(source, span, with_tensors=True)
            found = found or frame_reads.at_or_before(seen, stored=stored, tensors=described)
            counts = frame_reads.histograms(seen) if histograms else None
    only = None if tensor is None else fields.name(tensor, field="tensor")
    answer: dict[str, Any] = {"run_id": run_id, "rank": source.rank}
    answer |= _frame_json(found, only)
    if histograms:
        answer["hist_log2"] = _histograms_json(counts, only)
    return Numbers(answer, headers=headers)


def _spread(ranks: Sequence[int], most: int) -> list[int]:
    """At most so many of them, from the first to the last; stages of a pipeline lie side by side."""
    if len(ranks) <= most:
        return list(ranks)
    return [ranks[at * (len(ranks) - 1) // (most - 1)] for at in range(most)]


def _frame_json(found: Picture | None, only: str | None) -> dict[str, Any]:
    if found is None:
        return {"segment": None, "step": None, "tensors": [], "stats": {}}
    keep = slice(None) if only is None else [s for s, name in enumerate(found.names) if name == only]
    names = list(found.names) if only is None else [name for name in found.names if name == only]
    stats = {
        name: {"step": stat.step, "values": spelled(stat.values[keep], stat.present[keep])}
        for name, stat in found.stats.items()
    }
    return {"segment": found.segment, "step": found.step, "tensors": names, "stats": stats}


def _histograms_json(found: Histograms | None, only: str | None) -> dict[str, Any]:
    """Counts by tensor; of very many tensors only the first ones, unless one is asked for."""
    if found is None:
        return {"step": None, "counts": {}}
    chosen = [s for s, name in enumerate(found.names) if only in (None, name)][:MAX_HISTOGRAMS]
    return {"step": found.step, "counts": {found.names[s]: found.counts[s].tolist() for s in chosen}}


def _by_tensor(found: Picture) -> Mapping[str, dict[str, Any]]:
    """Tensor -> statistic -> its last value."""
    out: dict[str, dict[str, Any]] = {}
    for stat, of_stat in found.stats.items():
        values = of_stat.values.tolist()
        for s in np.flatnonzero(of_stat.present).tolist():
            out.setdefault(found.names[s], {})[stat] = values[s]
    return out
