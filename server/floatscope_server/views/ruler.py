"""Fills the range ruler: the tensors of one step that are worst off, with their histograms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.formats import FORMATS
from floatscope.protocol.names import BACKWARD_ROLES, split_tensor
from floatscope_dashboards.pictures_view import RulerView, TensorAt
from floatscope_server.store import raw, ruler_reads, series_reads
from floatscope_server.store.raw import Source
from floatscope_server.store.ruler_reads import Frame, Sampled
from floatscope_server.store.stretches import Span

SHOWN = 8
ALL_SHOWN = 250
LEAST_OF_GROUP = 2
"""Rows that each direction and format gets at least: a healthy half is worth seeing beside a broken one."""
KEY = "amax"
LARGEST = {name: found.max_finite for name, found in FORMATS.items()}
SCALED = frozenset(name for name, found in FORMATS.items() if found.is_scaled)
STATS = (
    "amax",
    "scale",
    "rms",
    "overflow_pct",
    "underflow_pct",
    "nan_count",
    "inf_count",
    "amax_min_block",
)


def ruler_view(
    source: Source,
    *,
    at: int,
    asked: int | None,
    stored: Sequence[str],
    tensors: Mapping[str, Mapping[str, Any]],
    everything: bool = False,
    kept: Sequence[str] = (),
) -> RulerView:
    """The ruler at the newest step up to ``at``. stored: the run's statistics. tensors: their description.

    kept: tensors that are shown whatever they are like.
    """
    if KEY not in stored:
        return RulerView(asked, None)
    wanted = [stat for stat in STATS if stat in stored]
    seen = series_reads.view(source, Span(0, at), with_tensors=True)
    found = ruler_reads.frame(seen, wanted, key=KEY)
    if found is None:
        return RulerView(asked, None)
    nothing: Mapping[str, Any] = {}
    formats = [str(tensors.get(name, nothing).get("format") or "") for name in found.names]
    has = found.present(KEY)
    takes_scale = np.array([f in SCALED for f in formats], bool)
    scaled = has & takes_scale
    pool = scaled if scaled.any() else has
    chosen = _worst(found, formats, np.flatnonzero(pool), ALL_SHOWN if everything else SHOWN)
    for name in kept:
        own = raw.column(found.names, name)
        if own is not None and has[own] and own not in chosen:
            chosen = [*chosen, own]
    names = [found.names[s] for s in chosen]
    histograms = ruler_reads.sampled(seen, set(names), at=at)
    scales = _scales(source, histograms, found)
    return RulerView(
        asked=asked,
        step=found.step,
        tensors=tuple(_tensor(found, s, formats[s], histograms, scales) for s in chosen),
        total=int(has.sum()),
        scaled=int(scaled.sum()),
        plain=_plain(formats, has & ~takes_scale),
    )


def _plain(formats: Sequence[str], left: NDArray[np.bool_]) -> tuple[tuple[str, int], ...]:
    counts: dict[str, int] = {}
    for s in np.flatnonzero(left).tolist():
        if formats[s]:
            counts[formats[s]] = counts.get(formats[s], 0) + 1
    return tuple(sorted(counts.items()))


def _worst(found: Frame, formats: Sequence[str], pool: NDArray[np.int64], most: int) -> list[int]:
    """Columns, worst first: not finite, then by what clips, what is lost, and how little range is left."""
    score = _badness(found, formats)
    ordered = pool[np.argsort(-score[pool], kind="stable")]  # columns are in order of names
    group = _groups(found.names, formats)[ordered]
    first = [np.flatnonzero(group == one)[:LEAST_OF_GROUP] for one in np.unique(group).tolist()]
    places = np.sort(np.concatenate([np.empty(0, np.int64), *first]))[:most]
    others = np.setdiff1d(np.arange(min(most, len(ordered))), places)[: most - len(places)]
    found_columns: list[int] = ordered[np.union1d(places, others)].tolist()
    return found_columns


def _groups(names: Sequence[str], formats: Sequence[str]) -> NDArray[np.int64]:
    """A number for each direction and format that a tensor may have."""
    number = {name: 2 * at for at, name in enumerate(dict.fromkeys(formats))}
    return np.array(
        [
            number[f] + (split_tensor(name)[1] in BACKWARD_ROLES)
            for name, f in zip(names, formats, strict=True)
        ],
        np.int64,
    )


def _badness(found: Frame, formats: Sequence[str]) -> NDArray[np.float64]:
    def of(stat: str) -> NDArray[np.float64]:
        return np.where(found.present(stat), found.values(stat), 0.0).astype(np.float64)

    limits = np.array([LARGEST.get(f, np.nan) for f in formats])
    scale = np.where(found.present("scale"), found.values("scale"), 1.0).astype(np.float64)
    with np.errstate(all="ignore"):
        used = np.log2(of("amax") * scale / limits)
    odd = (of("nan_count") > 0) | (of("inf_count") > 0) | ~np.isfinite(scale) | ~np.isfinite(of("amax"))
    used = np.where(np.isfinite(used), np.clip(used, -200, 200), -200)
    clip, lost = np.nan_to_num(of("overflow_pct")), np.nan_to_num(of("underflow_pct"))
    # Steps of a thousand, so that a lesser trouble never outweighs a greater one.
    return np.asarray(
        used + np.where(lost >= 1, 1e3 + lost, 0) + np.where(clip >= 0.05, 2e3 + 10 * clip, 0) + 1e5 * odd
    )


def _scales(
    source: Source, histograms: Mapping[str, Sampled], now: Frame
) -> dict[tuple[int, str], float | None]:
    """(step, tensor) -> its scale when its histogram was taken."""
    out: dict[tuple[int, str], float | None] = {}
    for step in {one.step for one in histograms.values()}:
        then: Frame | None = now
        if step != now.step:
            seen = series_reads.view(source, Span(step, step), with_tensors=True)
            then = ruler_reads.frame(seen, ("scale",), key="scale")
        place = {} if then is None else {name: s for s, name in enumerate(then.names)}
        for name, one in histograms.items():
            if one.step == step:
                out[step, name] = (
                    None if then is None or name not in place else _value(then, "scale", place[name])
                )
    return out


def _tensor(
    found: Frame,
    s: int,
    format_name: str,
    histograms: Mapping[str, Sampled],
    scales: Mapping[tuple[int, str], float | None],
) -> TensorAt:
    name = found.names[s]
    one = histograms.get(name)
    return TensorAt(
        name=name,
        format=format_name,
        amax=_value(found, "amax", s),
        rms=_value(found, "rms", s),
        scale=_value(found, "scale", s),
        overflow_pct=_value(found, "overflow_pct", s),
        underflow_pct=_value(found, "underflow_pct", s),
        nan=_value(found, "nan_count", s),
        inf=_value(found, "inf_count", s),
        amax_min_block=_value(found, "amax_min_block", s),
        counts=None if one is None else one.counts,
        sampled=None if one is None else one.step,
        sampled_scale=None if one is None else scales.get((one.step, name)),
    )


def _value(found: Frame, stat: str, s: int) -> float | None:
    return float(found.values(stat)[s]) if found.present(stat)[s] else None
