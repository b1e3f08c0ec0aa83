"""Fills the dashboards' view objects from the store."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from floatscope_dashboards.views import Kpi, RunRow, RunsView, RunView
from floatscope_server.curves import loss_curve
from floatscope_server.derived import DERIVED, needs
from floatscope_server.errors import Damaged, Unreachable
from floatscope_server.outcome import worst_finding
from floatscope_server.store import batches, kinds, runs, verdicts
from floatscope_server.store.runs import RunRecord
from floatscope_server.store.tiles import Objects
from floatscope_server.store.warm import Warm
from floatscope_server.times import moment

SPARK_POINTS = 60
SPARK_BYTES = 4_096  # about what one takes in memory
MAX_ROWS = 200  # of the overview, newest first

RECIPE_WORDS = {
    "fp8_delayed_scaling": "FP8 delayed scaling",
    "fp8_current_scaling": "FP8 current scaling",
    "fp8_block_scaling": "FP8 block scaling",
    "mxfp8": "MXFP8",
    "nvfp4": "NVFP4",
    "ao_tensorwise": "torchao tensorwise FP8",
    "ao_rowwise": "torchao rowwise FP8",
    "fp16_amp": "FP16 with loss scaling",
    "bf16": "BF16",
    "fp32": "FP32",
}


@dataclass(frozen=True)
class _Figure:
    """How one key figure is made.

    worst: which end of its range is the bad one, for the note.  decimals: shown after the point; None: four
    significant digits.
    """

    key: str
    name: str
    unit: str
    worst: str | None = None
    decimals: int | None = None


FIGURES = (
    _Figure("loss", "Loss", "nats"),
    _Figure("grad_norm", "Gradient norm", ""),
    _Figure("headroom_log2", "Lowest headroom", "binades", worst="lowest", decimals=2),
    _Figure("overflow_pct", "Clipped", "%", worst="highest", decimals=2),
    _Figure("underflow_pct", "Underflow", "%", worst="highest", decimals=2),
    _Figure("lr", "Learning rate", ""),
    _Figure("step_time_s", "Step time", "s"),
)


def runs_view(
    c: Connection,
    *,
    project: str | None,
    version: str,
    objects: Objects | None = None,
    warm: Warm | None = None,
) -> RunsView:
    """The overview of the newest runs, of one project or all. A run of which something cannot be read says
    so; the others are as they are.
    """
    found = runs.listed(c, project=project, limit=MAX_ROWS)
    return RunsView(
        rows=tuple(_listed_row(c, run, objects, warm) for run in found),
        total=runs.count(c, project=project),
        project=project,
        now=moment(time.time()),
        version=version,
    )


def run_view(
    c: Connection,
    run: RunRecord,
    *,
    at: int | None,
    verdict: dict[str, Any],
    version: str,
    objects: Objects | None = None,
    warm: Warm | None = None,
) -> RunView:
    """The page of one run."""
    described = runs.info(c, run.id).to_json()
    seen = [
        glance for _first, _last, glance in batches.glances(c, run.id, _rank(c, run), points=SPARK_POINTS)
    ]
    stored = tuple(sorted({name for kind, name in runs.series(c, run.id) if kind == kinds.STAT}))
    derived = tuple(stat for stat in DERIVED if stat not in stored and needs(stat, stored))
    return RunView(
        row=_row(c, run, verdict, objects, warm),
        info=described,
        verdict=verdict,
        kpis=tuple(figure for spec in FIGURES if (figure := _figure(spec, seen)) is not None),
        heat_stats=(*stored, *derived),
        at=at,
        now=moment(time.time()),
        version=version,
    )


def recipe_words(recipe: Mapping[str, Any]) -> str:
    """The recipe as people write it, for example "FP8 delayed scaling, hybrid"."""
    name = str(recipe.get("name") or "")
    words = RECIPE_WORDS.get(name, name)
    fp8_format = recipe.get("fp8_format")
    return f"{words}, {str(fp8_format).lower()}" if words and fp8_format else words


def _listed_row(c: Connection, run: RunRecord, objects: Objects | None, warm: Warm | None) -> RunRow:
    damaged = run.damaged
    try:
        verdict = verdicts.find(c, run.id) if run.health != "healthy" else None
    except Damaged as error:
        verdict, damaged = None, error.part
    row = _row(c, run, verdict, objects, warm)
    return row if damaged is None else replace(row, headline=_damage_words(damaged))


def _damage_words(part: str) -> str:
    return f"Stored data of this run is damaged: {part} cannot be read."


def _row(
    c: Connection,
    run: RunRecord,
    verdict: Mapping[str, Any] | None,
    objects: Objects | None,
    warm: Warm | None,
) -> RunRow:
    headline = run.summary
    sparkline: tuple[float | None, ...] = ()
    try:
        sparkline = _sparkline(c, run, objects, warm)
    except Damaged as error:
        headline = _damage_words(error.part)
    except Unreachable:
        sparkline = ()  # logged where it was met; the line of the run does without its curve
    worst = worst_finding((verdict or {}).get("findings", []))
    confidence = None if worst is None else _confidence(worst)
    remedy = (worst or {}).get("remedy") or {}
    return RunRow(
        run_id=run.run_id,
        name=run.name,
        project=run.project,
        recipe=recipe_words(run.recipe),
        status=run.status,
        health=run.health,
        headline=headline,
        cause=run.cause,
        first_step=run.first_step,
        last_step=run.last_step,
        last_loss=run.last_loss,
        created=moment(run.created),
        last_seen=None if run.last_seen is None else moment(run.last_seen),
        onset_step=run.onset_step,
        sparkline=sparkline,
        baseline=run.baseline,
        confidence=confidence if isinstance(confidence, int | float) else None,
        remedy=_first_sentence(remedy.get("text")) if isinstance(remedy, Mapping) else None,
    )


def _sparkline(
    c: Connection, run: RunRecord, objects: Objects | None, warm: Warm | None
) -> tuple[float | None, ...]:
    """The loss curve of a line; it is the same until the run's next batch, and remembered till then."""
    key = ("sparkline", run.id, run.arrivals)
    known: tuple[float | None, ...] | None = None if warm is None else warm.get(key)
    if known is None:
        curve = loss_curve(c, run.id, _rank(c, run), points=SPARK_POINTS, objects=objects, warm=warm)
        known = tuple(value for _step, value in curve)
        if warm is not None:
            warm.keep(key, known, SPARK_BYTES)
    return known


def _confidence(finding: Mapping[str, Any]) -> object:
    """Of the cause, or of the likeliest candidate where none is determined."""
    if finding.get("cause") != "undetermined":
        return finding.get("confidence")
    shares = [a.get("confidence") for a in finding.get("alternatives") or [] if isinstance(a, Mapping)]
    return max((x for x in shares if isinstance(x, int | float)), default=None)


def _rank(c: Connection, run: RunRecord) -> int:
    """The lowest rank that sent something; it speaks for the run."""
    found = runs.positions(c, run.id)
    return found[0].rank if found else 0


def _figure(spec: _Figure, seen: Sequence[Mapping[str, float]]) -> Kpi | None:
    values = [glance.get(spec.key) for glance in seen]
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Kpi(
        name=spec.name,
        value=number_words(known[-1], decimals=spec.decimals),
        unit=spec.unit,
        note=_note(spec, known),
        sparkline=tuple(values[-SPARK_POINTS:]),
    )


def _note(spec: _Figure, known: Sequence[float]) -> str:
    finite = [value for value in known if math.isfinite(value)]
    if spec.worst is None or not finite:
        return "last step"
    worst = min(finite) if spec.worst == "lowest" else max(finite)
    return f"{spec.worst} of all tensors; {spec.worst} so far {number_words(worst, decimals=spec.decimals)}"


def number_words(value: float, *, decimals: int | None = None) -> str:
    """A number short enough for a tile, with NaN and Inf as words; what rounds to 0 but is not says so."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    if decimals is not None:
        least = 10.0**-decimals
        if value != 0 and abs(value) < least:
            return f"< {least:g}" if value > 0 else f"> -{least:g}"
        return f"{value:.{decimals}f}"
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.2e}"
    return f"{value:.4g}"


def _first_sentence(text: object) -> str | None:
    if not isinstance(text, str) or not text:
        return None
    head, stop, _rest = text.partition(". ")
    return head + "." if stop else text
