"""Fills the views of the comparison from the store."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sqlalchemy import Connection

from floatscope.protocol.names import MAX_STEP
from floatscope.protocol.runinfo import RunInfo
from floatscope_dashboards.compare_view import AskedLimits as ShownLimits
from floatscope_dashboards.compare_view import (
    Choice,
    ChooseView,
    ComparedRun,
    CompareView,
    PairNote,
    PresetChoice,
    Suggestion,
)
from floatscope_dashboards.findings import open_findings, read_findings
from floatscope_dashboards.warm_up import health_of
from floatscope_diagnostics.compare.limits import presets
from floatscope_server import comparing
from floatscope_server.asked_limits import NUMBERS, PRESET, AskedLimits, asked_limits
from floatscope_server.compared_notes import pair_notes
from floatscope_server.compared_side import values_of
from floatscope_server.comparing import AT_ONCE_VALUES, Asked, CannotCompare, CannotDecide, Compared
from floatscope_server.errors import Damaged
from floatscope_server.levels import Level
from floatscope_server.routes import fields
from floatscope_server.services import Services
from floatscope_server.store import batches, kinds, runs, searching, series_reads, verdicts
from floatscope_server.store.raw import Source
from floatscope_server.store.runs import RunRecord
from floatscope_server.store.stretches import Span
from floatscope_server.times import moment
from floatscope_server.views.compare_evals import eval_pairs
from floatscope_server.views.run_rows import rank, recipe_words

MAX_CHOICES = 100
RISING_BINS = 8  # neighbours that rise: it is a total
MAX_SUGGESTIONS = 6
SPEED_POINTS = 128
GLANCES = 64
MAX_SETTINGS = 400
MAX_SETTING_CHARS = 160
MAX_DEPTH = 6
NUMBER_FAMILIES = frozenset({"scale_calibration_blowup", "slow_truncation_drift", "activation"})
_MEDIANS = ("step_time_s", "gpu_util_pct", "gpu_power_w")


@dataclass(frozen=True)
class ReadQuery:
    """What the address asks for. corrected: parts of it that cannot be used, as they are written."""

    run: str
    baseline: str
    limits: AskedLimits
    first: int | None
    last: int | None
    text: str
    corrected: tuple[str, ...]


def read_query(params: Mapping[str, str]) -> ReadQuery:
    """Takes what can be used; never refuses."""
    bad: list[str] = []
    limits = asked_limits({name: _text(params, name) for name in (*NUMBERS, PRESET) if params.get(name)})
    bad += [f"{name}={text}" for name, text, _expected in limits.bad]
    steps: list[int | None] = []
    for name in ("from", "to"):
        text = params.get(name, "")
        good = text.isascii() and text.isdigit() and len(text) <= 16 and int(text) <= MAX_STEP
        steps.append(int(text) if good else None)
        if text and not good:
            bad.append(f"{name}={text[:40]}")
    first, last = steps
    if first is not None and last is not None and last < first:
        bad.append(f"to={last}")
        last = None
    return ReadQuery(
        _text(params, "run")[:128],
        (_text(params, "baseline") or _text(params, "base"))[:128],
        limits,
        first,
        last,
        _text(params, "q")[:200].strip(),
        tuple(bad),
    )


def _text(params: Mapping[str, str], key: str) -> str:
    return fields.storable(params.get(key)) or ""


def found_pair(c: Connection, query: ReadQuery) -> tuple[RunRecord | None, RunRecord | None]:
    """The runs that the address names; None where it names none that exists."""
    own = runs.find(c, query.run) if query.run else None
    return own, runs.find(c, query.baseline) if query.baseline else None


def choose_view(c: Connection, query: ReadQuery) -> ChooseView:
    """The lists to choose from."""
    own, other = found_pair(c, query)
    words = searching.words_of(query.text)
    if words:
        hits, _more = searching.find_runs(c, words, limit=MAX_CHOICES)
        known = runs.found(c, [hit.run_id for hit in hits])
        found = [known[hit.run_id] for hit in hits if hit.run_id in known]
    else:
        found = runs.listed(c, limit=MAX_CHOICES)
    picked = [run for run in (own, other) if run is not None and run.id not in {r.id for r in found}]
    baseline = query.baseline
    if not baseline and own is not None and own.baseline is not None:
        baseline = own.baseline
    missing = [asked for asked, run in ((query.run, own), (query.baseline, other)) if asked and run is None]
    return ChooseView(
        choices=tuple(_choice(run) for run in [*picked, *found]),
        suggestions=_suggestions(c, found),
        total=runs.count(c),
        query=query.text,
        run_id=query.run,
        baseline_id=baseline,
        missing=tuple(dict.fromkeys(missing)),
        same=own is not None and other is not None and own.id == other.id,
        corrected=query.corrected,
        now=moment(time.time()),
    )


def _choice(run: RunRecord) -> Choice:
    return Choice(
        run.run_id, run.name, run.project, recipe_words(run.recipe), run.last_step, health_of(run), run.status
    )


def _suggestions(c: Connection, found: Sequence[RunRecord]) -> tuple[Suggestion, ...]:
    out: list[Suggestion] = []
    bases = runs.found(c, {run.baseline for run in found if run.baseline})
    for run in found:
        base = bases.get(run.baseline or "")
        if (
            base is not None
            and base.id != run.id
            and base.last_step is not None
            and run.last_step is not None
        ):
            out.append(Suggestion(_choice(run), _choice(base)))
        if len(out) == MAX_SUGGESTIONS:
            break
    return tuple(out)


def compare_view(
    c: Connection,
    services: Services,
    own: RunRecord,
    other: RunRecord,
    query: ReadQuery,
    *,
    wait: bool = False,
) -> CompareView:
    """Two runs beside each other. wait: for the tensors of large runs, too."""
    described = [services.descriptions.get(c, run) for run in (own, other)]
    notes = pair_notes(own, other, described[0], described[1])
    found, why_not, asked = _compared(c, services, own, other, query, wait=wait)
    document, corrected = None, query.corrected
    if found is not None:
        go, refused = _decided(c, services, own, other, asked, found, query.limits)
        document = found.document(go)
        corrected += refused
    span = _common(own, other, query)
    sides = [_side(c, services, run, info, span) for run, info in zip((own, other), described, strict=True)]
    rows = None if found is None else found.rows
    return CompareView(
        run=sides[0],
        base=sides[1],
        document=document,
        why_not=why_not,
        notes=tuple(PairNote(n.code, n.setting, n.run, n.baseline) for n in notes),
        rows=None if rows is None else (rows.read[0], rows.logged[0]),
        margin=asked.margin if document is None else _margin(document["go"], asked.margin),
        first=query.first,
        last=query.last,
        corrected=corrected,
        now=moment(time.time()),
        limits=ShownLimits(
            query.limits.given, tuple(PresetChoice(name, one.says) for name, one in presets().items())
        ),
        evals=() if found is None else eval_pairs(c, services, own, other, span),
    )


def _margin(go: Mapping[str, Any], other: float) -> float:
    """The decision's own, which follows from the baseline's loss where none is asked for."""
    margin = go.get("limits", {}).get("margin_nats")
    return float(margin) if isinstance(margin, (int, float)) else other


def _decided(
    c: Connection,
    services: Services,
    own: RunRecord,
    other: RunRecord,
    asked: Asked,
    found: Compared,
    limits: AskedLimits,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The decision, and what of the address does not fit these runs and was left out."""
    try:
        return comparing.decided(c, services, own, other, asked, found=found, limits=limits.limits), ()
    except CannotDecide:
        usual = asked_limits({name: text for name, text in limits.given.items() if name != PRESET})
        go = comparing.decided(c, services, own, other, asked, found=found, limits=usual.limits)
        return go, (f"{PRESET}={limits.given.get(PRESET, '')}",)


def _compared(
    c: Connection, services: Services, own: RunRecord, other: RunRecord, query: ReadQuery, *, wait: bool
) -> tuple[Compared | None, str, Asked]:
    """The comparison, or why there is none, and what was asked. Tensors of large runs are left for the script
    to ask for.
    """
    asked = Asked.by(query.limits, query.first, query.last)
    try:
        known = comparing.remembered(services, own, other, asked)
        if known is not None:
            return known, "", asked
        large = sum(values_of(c, services, run) for run in (own, other)) > AT_ONCE_VALUES
        if large and not wait:
            asked = replace(asked, values=0)
        return comparing.compared(c, services, own, other, asked), "", asked
    except CannotCompare as error:
        return None, _sentence(error.detail), asked


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _common(own: RunRecord, other: RunRecord, query: ReadQuery) -> Span:
    """Steps that both runs have, or those of either where they share none."""
    first = max(own.first_step or 0, other.first_step or 0, query.first or 0)
    last = min(own.last_step or 0, other.last_step or 0, MAX_STEP if query.last is None else query.last)
    return Span(first, last) if first <= last else Span(0, MAX_STEP)


def _side(c: Connection, services: Services, run: RunRecord, info: RunInfo, span: Span) -> ComparedRun:
    verdict = _verdict(c, run)
    found = None if verdict is None else open_findings(read_findings(verdict))
    headroom, clipped = _worst(c, run)
    config, left_out = _settings(info)
    return ComparedRun(
        run_id=run.run_id,
        name=run.name,
        project=run.project,
        recipe=recipe_words(run.recipe),
        status=run.status,
        health=run.health,
        first_step=run.first_step,
        last_step=run.last_step,
        baseline=run.baseline,
        open_findings=None if found is None else len(found),
        number_findings=_about_numbers(verdict, {item.key for item in found or ()}),
        headroom=headroom,
        clipped_pct=clipped,
        speeds=_speeds(c, services, run, span),
        config=config,
        config_left_out=left_out,
    )


def _verdict(c: Connection, run: RunRecord) -> dict[str, Any] | None:
    try:
        return verdicts.find(c, run.id)
    except Damaged:
        return None  # what reads it for its own page says so; here it is not known


def _about_numbers(verdict: Mapping[str, Any] | None, keys: set[str]) -> int:
    items = (verdict or {}).get("findings") or ()
    return sum(f.get("id") in keys and f.get("family") in NUMBER_FAMILIES for f in items)


def _worst(c: Connection, run: RunRecord) -> tuple[float | None, float | None]:
    """Lowest headroom and largest share of clipped values in the batches that are looked at."""
    seen = [glance for _f, _l, glance in batches.glances(c, run.id, rank(c, run), points=GLANCES)]
    low = [g["headroom_log2"] for g in seen if math.isfinite(g.get("headroom_log2", math.nan))]
    high = [g["overflow_pct"] for g in seen if math.isfinite(g.get("overflow_pct", math.nan))]
    return min(low, default=None), max(high, default=None)


def _speeds(c: Connection, services: Services, run: RunRecord, span: Span) -> dict[str, float]:
    """Medians over the steps that both runs have; peak of the memory, total of the skipped steps."""
    known = runs.series(c, run.id)
    names = [n for n in (*_MEDIANS, "tokens", "gpu_mem_gib", "skipped_steps") if (kinds.SCALARS, n) in known]
    if not names:
        return {}
    source = Source(c, run.id, rank(c, run), services.tensor_tables, services.objects, services.warm)
    levels = series_reads.scalars(series_reads.view(source, span), names, SPEED_POINTS)
    out: dict[str, float] = {}
    for name in _MEDIANS:
        _put(out, name, _median(levels.get(name)))
    if "tokens" in levels and "step_time_s" in levels:
        each, seconds = _tokens_each(levels["tokens"]), out.get("step_time_s")
        if each is not None and seconds:
            _put(out, "tokens_per_s", each / seconds)
    for name in ("gpu_mem_gib", "skipped_steps"):
        if name in levels:
            _put(out, name, _highest(levels[name]))
    if out.get("gpu_power_w") and out.get("tokens_per_s"):
        out["joule_per_token"] = 1000 * out["gpu_power_w"] / out["tokens_per_s"]
    return out


def _put(out: dict[str, float], name: str, value: float | None) -> None:
    if value is not None and math.isfinite(value):
        out[name] = value


def _median(level: Level | None) -> float | None:
    if level is None or level.mean is None or not len(level.bins):
        return None
    values = np.asarray(level.mean[0], np.float64)
    values = values[np.isfinite(values) & (level.count[0] > level.nan[0] + level.inf[0])]
    return float(np.median(values)) if len(values) else None


def _tokens_each(level: Level) -> float | None:
    """Tokens a step. Some loops log those of each step, others all since the start."""
    if level.last is None or len(level.bins) < 2:
        return _median(level)
    counts = np.asarray(level.last[0], np.float64)
    steps = (level.bins[-1] - level.bins[0]) * level.width
    if len(counts) >= RISING_BINS and bool((np.diff(counts) > 0).all()):
        return float((counts[-1] - counts[0]) / steps)
    return _median(level)


def _highest(level: Level) -> float | None:
    good = level.count[0] > level.nan[0] + level.inf[0]
    values = np.asarray(level.maximum[0], np.float64)[good]
    return float(values.max()) if len(values) else None


def _settings(info: RunInfo) -> tuple[dict[str, str], int]:
    """Recipe and configuration by dotted name, and how many more there are."""
    found: dict[str, str] = {}
    left = 0
    for name, value in _flat({"recipe": info.recipe, **info.config}, ""):
        if len(found) < MAX_SETTINGS:
            found[name] = value
        else:
            left += 1
    for name, number in (("ranks", info.ranks), ("vocab_size", info.vocab_size)):
        if number is not None:
            found.setdefault(name, f"{number:,}")
    return found, left


def _flat(value: Any, name: str, depth: int = 0) -> Sequence[tuple[str, str]]:
    if isinstance(value, Mapping) and value and depth < MAX_DEPTH:
        return [
            pair
            for key in value
            for pair in _flat(value[key], f"{name}.{key}" if name else str(key), depth + 1)
        ]
    text = value if isinstance(value, str) else str(value)
    return [(name[:MAX_SETTING_CHARS], _cut(text))]


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SETTING_CHARS else text[: MAX_SETTING_CHARS - 1] + "\u2026"
