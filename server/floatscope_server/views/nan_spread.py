"""Finds where NaN and Inf were first seen: by tensor, statistic and scalar."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Connection

from floatscope.protocol.names import split_tensor
from floatscope_dashboards.pictures_view import BadGroup, FirstBad, PathView
from floatscope_server.store import kinds, runs, series_reads, spread_reads
from floatscope_server.store.rank_reads import spread
from floatscope_server.store.raw import Source
from floatscope_server.store.runs import RunRecord
from floatscope_server.store.stretches import Span
from floatscope_server.store.tensor_tables import TensorTables
from floatscope_server.store.tiles import Objects
from floatscope_server.store.warm import Warm

VALUE_STATS = (("nan_count", "inf_count"), ("rms",), ("amax",))
"""What tells that values of a tensor are not finite, best first."""
OTHER_STATS = {"scale": "scale", "grad_norm": "gradient", "update_ratio": "update"}
SCALARS = ("loss", "grad_norm", "update_norm", "param_norm")
POINTS = 64
MOST_RANKS = 4
MOST_TENSORS = 400
REMEMBERED_BYTES = 100_000


@dataclass(frozen=True)
class _Where:
    """What a search needs of a run."""

    c: Connection
    run: RunRecord
    info: Mapping[str, Any]
    known: Mapping[tuple[int, str], tuple[int, ...]]
    tables: TensorTables
    objects: Objects | None
    warm: Warm | None

    def source(self, rank: int) -> Source:
        return Source(self.c, self.run.id, rank, self.tables, self.objects, self.warm)

    @property
    def tensors(self) -> Mapping[str, Mapping[str, Any]]:
        found = self.info.get("tensors")
        return found if isinstance(found, Mapping) else {}

    def stats(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The statistics of values that the run has, and the others."""
        have = {name for kind, name in self.known if kind == kinds.STAT}
        values = next((kept for names in VALUE_STATS if (kept := tuple(n for n in names if n in have))), ())
        return values, tuple(name for name in OTHER_STATS if name in have)


def path_view(
    c: Connection,
    run: RunRecord,
    *,
    info: Mapping[str, Any],
    verdict: Mapping[str, Any],
    known: Mapping[tuple[int, str], tuple[int, ...]],
    tables: TensorTables,
    objects: Objects | None,
    warm: Warm | None,
) -> PathView | None:
    """None while everything was finite."""
    if run.last_step is None:
        return None
    where = _Where(c, run, info, known, tables, objects, warm)
    kept = warm or Warm(0)
    # What was found stays as it is, and steps that were finite stay finite, until a step is trained again.
    segments = tuple((at.rank, at.segment) for at in runs.positions(c, run.id))
    key = ("spread", run.id, run.version, run.described, segments)
    before: _Searched = kept.get(key) or _Searched(run.first_step or 0, None)
    if before.view is not None and run.last_step >= before.view.first + spread_reads.WINDOW:
        return before.view
    found = _search(where, verdict, before.finite_to)
    finite_to = min([run.last_step, *(at.last_step for at in runs.positions(c, run.id) if at.last_step)])
    kept.keep(key, _Searched(before.finite_to if found else finite_to, found), REMEMBERED_BYTES)
    return found


@dataclass(frozen=True)
class _Searched:
    """Up to which step all was finite, and what was found after it."""

    finite_to: int
    view: PathView | None


def _suspect(verdict: Mapping[str, Any]) -> int | None:
    """The rank that a finding of values that are not finite names."""
    for item in verdict.get("findings", ()):
        if isinstance(item.get("rank"), int) and "nonfinite" in f"{item.get('symptom')} {item.get('kind')}":
            return int(item["rank"])
    return None


def _scale_onset(verdict: Mapping[str, Any]) -> int | None:
    """Where the first finding about a scale begins; None without one: scales are then not looked at, since
    each look takes time.
    """
    about = [item for item in verdict.get("findings", ()) if item.get("cause") == "scale_state_fault"]
    return min(
        (int(item["onset_step"]) for item in about if item.get("onset_step") is not None), default=None
    )


def _search(where: _Where, verdict: Mapping[str, Any], low: int) -> PathView | None:
    suspect = _suspect(verdict)
    run = where.run
    last = run.last_step or 0
    values, others = where.stats()
    onset = _scale_onset(verdict)
    searched = values if onset is None else (*values, "scale")
    low = low if onset is None else min(low, onset)
    have = {r for name in (*values, *others) for r in where.known[kinds.STAT, name]}
    have |= {r for name in SCALARS for r in where.known.get((kinds.SCALARS, name), ())}
    ranks = sorted(have)
    looked_at = spread(ranks, MOST_RANKS)
    if suspect in have and suspect not in looked_at:
        looked_at = [suspect, *looked_at[:-1]]
    first: dict[int, int] = {}
    scalars: dict[int, tuple[tuple[str, int, str], ...]] = {}
    for rank in looked_at:
        source = where.source(rank)
        scalars[rank] = _scalars(source, where, low, last)
        end = min([last, *(step for _name, step, _kind in scalars[rank])])
        stats = [s for s in searched if rank in where.known.get((kinds.STAT, s), ())]
        at = spread_reads.first_step(source, stats, Span(low, end), tensors=where.tensors)
        steps = [step for _name, step, _kind in scalars[rank]] + ([] if at is None else [at])
        if steps:
            first[rank] = min(steps)
    if not first:
        return None
    step = min(first.values())
    same = [rank for rank, at in first.items() if at == step]
    rank = suspect if suspect in same else min(same)
    bad = _tensors(where, rank, step, last, values, others)
    groups = Counter((one.step, split_tensor(one.tensor)[1], one.stat) for one in bad)
    counts = Counter(split_tensor(name)[1] for name in where.tensors)
    return PathView(
        first=step,
        tensors=tuple(bad[:MOST_TENSORS]),
        groups=tuple(BadGroup(*key, n) for key, n in sorted(groups.items())),
        scalars=tuple(one for one in scalars[rank] if one[1] <= step + spread_reads.WINDOW),
        counts=tuple(sorted(counts.items())),
        rank=rank,
        ranks=len(ranks),
        looked_at=len(looked_at),
        others=tuple(sorted(set(same) - {rank})),
    )


def _tensors(
    where: _Where, rank: int, step: int, last: int, values: Sequence[str], others: Sequence[str]
) -> list[FirstBad]:
    source = where.source(rank)
    found: dict[tuple[str, str], FirstBad] = {}
    for stat in (*values, *others):
        if rank not in where.known.get((kinds.STAT, stat), ()):
            continue
        kind = OTHER_STATS.get(stat, "values")
        bad = spread_reads.after(source, stat, step, last, tensors=where.tensors)
        for name, at, value in zip(bad.names, bad.step.tolist(), bad.value.tolist(), strict=True):
            before = found.get((name, kind))
            if before is not None and before.step < at:
                continue
            count = value if stat in spread_reads.COUNTS and np.isfinite(value) else None
            same = before if before is not None and before.step == at else None
            found[name, kind] = FirstBad(
                step=at,
                tensor=name,
                stat=kind,
                nan=count if stat == "nan_count" else same.nan if same else None,
                inf=count if stat == "inf_count" else same.inf if same else None,
                order=_order(where.tensors.get(name)),
            )
    return sorted(found.values(), key=lambda b: (b.step, 1 << 40 if b.order is None else b.order, b.tensor))


def _order(described: Mapping[str, Any] | None) -> int | None:
    order = (described or {}).get("call_order")
    return order if isinstance(order, int) else None


def _scalars(source: Source, where: _Where, low: int, last: int) -> tuple[tuple[str, int, str], ...]:
    """Name, first step and kind of each scalar of the rank that was not finite."""
    names = [n for n in SCALARS if source.rank in where.known.get((kinds.SCALARS, n), ())]
    found = []
    for name in names:
        step = _first_scalar(source, name, low, last)
        if step is not None:
            found.append((name, *step))
    return tuple(sorted(found, key=lambda one: one[1]))


def _first_scalar(source: Source, name: str, low: int, high: int) -> tuple[int, str] | None:
    while low <= high:
        seen = series_reads.view(source, Span(low, high))
        level = series_reads.scalars(seen, [name], POINTS)[name]
        bad = np.flatnonzero((level.nan[0] > 0) | (level.inf[0] > 0))
        if not len(bad):
            return None
        begin = int(level.bins[bad[0]]) * level.width
        if level.width == 1:
            return begin, "NaN" if level.nan[0][bad[0]] else "Inf"
        low, high = max(low, begin), min(high, begin + level.width - 1)
    return None
