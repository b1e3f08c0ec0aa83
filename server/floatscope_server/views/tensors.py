"""Fills the view of the table of all tensors from the store."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from sqlalchemy import Connection

from floatscope.protocol.batch import Int64
from floatscope.protocol.names import MAX_STEP, split_tensor
from floatscope_dashboards.findings import open_findings, read_findings
from floatscope_dashboards.tensor_view import TENSOR_STATES, WORST, TensorRun, TensorsAsked, TensorsView
from floatscope_server.routes import reading
from floatscope_server.services import Services
from floatscope_server.store import frame_reads, kinds, runs, series_reads
from floatscope_server.store.frame_reads import Picture
from floatscope_server.store.raw import Source
from floatscope_server.store.runs import RunRecord
from floatscope_server.store.stretches import Span
from floatscope_server.views.tensor_order import TensorColumns, network_order, sorted_by, tensor_columns

PAGE_TENSORS = 200
MOST_RANKS = 64  # in the choice of ranks


def tensor_run(run: RunRecord) -> TensorRun:
    """The run as the tensor pages show it."""
    seen = None if run.last_seen is None else max(0.0, time.time() - run.last_seen)
    return TensorRun(run.run_id, run.name, run.project, run.status, run.first_step, run.last_step, seen)


def tensors_view(
    c: Connection,
    run: RunRecord,
    asked: TensorsAsked,
    services: Services,
    *,
    verdict: Mapping[str, Any],
) -> TensorsView:
    """One page of the table, as asked for."""
    known = runs.series(c, run.id)
    has = ranks_with_stats(known)
    if asked.rank is not None and has and asked.rank not in has:
        asked = replace(asked, rank=None, corrected=(*asked.corrected, "rank"))
    rank = reading.rank_of(asked.rank, has)
    source = reading.source(c, services, run, rank)
    described = services.descriptions.get(c, run).tensors
    picture = picture_at(source, asked.at, known, described)
    order = network_order(run, picture, described, services.warm)
    columns = tensor_columns(picture, described, order=order)
    found = _matching(columns, asked)
    by_role = Counter(split_tensor(columns.names[at])[1] for at in _matching(columns, asked, role=False))
    by_state = Counter(TENSOR_STATES[int(columns.state[at])] for at in _matching(columns, asked, state=False))
    pages = max(1, -(-len(found) // PAGE_TENSORS))
    page = min(asked.page, pages)
    here = found[(page - 1) * PAGE_TENSORS : page * PAGE_TENSORS]
    named = _named(verdict)
    return TensorsView(
        run=tensor_run(run),
        asked=_on_page(asked, page),
        lines=tuple(replace(line, named=named.get(line.name, "")) for line in map(columns.line, here)),
        total=len(columns.names),
        matching=len(found),
        pages=pages,
        step=None if picture is None else picture.step,
        rank=rank,
        ranks=shown_ranks(has, rank),
        stats=tuple(stat for stat, there in columns.has.items() if there.any()),
        roles={role: count for role, count in by_role.items() if role},
        states=by_state,
    )


def ranks_with_stats(known: Mapping[tuple[int, str], Sequence[int]]) -> tuple[int, ...]:
    """The ranks that sent statistics, ascending."""
    return tuple(sorted({at for (kind, _name), ranks in known.items() if kind == kinds.STAT for at in ranks}))


def shown_ranks(has: Sequence[int], rank: int) -> tuple[int, ...]:
    """Ranks for the choice: of very many only some, and the one that is shown."""
    if len(has) <= MOST_RANKS:
        return tuple(has)
    some = {has[at * (len(has) - 1) // (MOST_RANKS - 1)] for at in range(MOST_RANKS)}
    return tuple(sorted(some | {rank}))


def picture_at(
    source: Source,
    at: int | None,
    known: Mapping[tuple[int, str], tuple[int, ...]],
    described: Mapping[str, Mapping[str, Any]],
) -> Picture | None:
    """The rank's tensors at the step, or the newest before it that has statistics; without one the last."""
    last = frame_reads.last(source, segment=None, tensors=described)
    if at is None or last is None or at >= last.step:
        return last
    seen = series_reads.view(source, Span(0, min(at, MAX_STEP)), with_tensors=True)
    return frame_reads.at_or_before(seen, stored=reading.stored_stats(dict(known)), tensors=described)


def _matching(
    columns: TensorColumns, asked: TensorsAsked, *, role: bool = True, state: bool = True
) -> list[int]:
    """Places of the tensors that pass the filters, in order. role, state: whether that filter counts."""
    if asked.sort == WORST:
        order: Int64 = columns.worst
    elif asked.sort == "call":
        order = np.arange(len(columns.names))[:: -1 if asked.descending else 1]
    else:
        order = sorted_by(columns, asked.sort, descending=asked.descending)
    if state and asked.state:
        order = order[columns.state[order] == TENSOR_STATES.index(asked.state)]
    terms = asked.q.lower().split()
    wanted_role = asked.role if role else ""
    found: list[int] = order.tolist()
    if terms:
        found = [at for at in found if all(term in columns.names[at].lower() for term in terms)]
    if wanted_role or asked.layer:
        found = [at for at in found if _in(columns.names[at], asked.layer, wanted_role)]
    return found


def _in(name: str, layer: str, role: str) -> bool:
    its_layer, its_role = split_tensor(name)
    return layer in ("", its_layer) and role in ("", its_role)


def _named(verdict: Mapping[str, Any]) -> dict[str, str]:
    """Tensor -> severity of the worst open finding that names it."""
    found: dict[str, str] = {}
    for item in open_findings(read_findings(verdict)):
        for name in (item.tensor, *(number.tensor for number in item.evidence)):
            if name:
                found.setdefault(name, item.severity)
    return found


def _on_page(asked: TensorsAsked, page: int) -> TensorsAsked:
    return replace(asked, page=page)
