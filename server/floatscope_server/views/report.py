"""Fills the view of a run's printable report from the store."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from floatscope.protocol.names import MAX_STEP
from floatscope_dashboards.evidence import evidence_card, proof_panel
from floatscope_dashboards.report_view import AlertLine, CurveSeries, ReportView
from floatscope_dashboards.say import Say
from floatscope_server.derived import needs
from floatscope_server.errors import Damaged, Unreachable
from floatscope_server.reduce import columns as columns_of
from floatscope_server.routes import reading
from floatscope_server.services import Services
from floatscope_server.store import alerts, batches, kinds, runs, series_reads
from floatscope_server.store.runs import RunRecord
from floatscope_server.store.stretches import Span
from floatscope_server.times import moment
from floatscope_server.views.run_rows import rank, row

POINTS = 260
MAX_EVENTS = 12
LEAST_BEFORE = 0.2
"""Share of the run that is shown before the onset, at least."""


def report_view(
    c: Connection, services: Services, run: RunRecord, verdict: Mapping[str, Any], say: Say
) -> ReportView:
    """The report of one run as of now."""
    lines, left = _alerts(c, run)
    onset = run.onset_step
    at = None if onset is None else batches.time_of(c, run.id, step=onset, rank=rank(c, run))
    return ReportView(
        row=row(c, run, verdict, services.objects, services.warm),
        verdict=verdict,
        ranks=len(runs.positions(c, run.id)),
        onset_time=None if at is None else moment(at),
        curves=_curves(c, services, run, verdict, say),
        alerts=lines,
        alerts_left_out=left,
        url=f"{services.settings.public_url}/runs/{run.run_id}",
        version=services.version,
        now=moment(time.time()),
    )


def _shown(run: RunRecord) -> Span:
    """The run, or where it is long the part around the onset: as much before it as after it."""
    first, last = run.first_step or 0, run.last_step or 0
    if run.onset_step is None or run.onset_step > last:
        return Span(first, last)
    before = max(last - run.onset_step, int(LEAST_BEFORE * (last - first)))
    return Span(max(first, run.onset_step - before), last)


def _curves(
    c: Connection, services: Services, run: RunRecord, verdict: Mapping[str, Any], say: Say
) -> CurveSeries | None:
    """None where what is stored cannot be read: it is logged there, and the report does without."""
    span = _shown(run)
    try:
        loss = _loss(c, services, run, span)
        if loss is None:
            return None
        base = runs.find(c, run.baseline) if run.baseline is not None else None
        panel = proof_panel(evidence_card(verdict, say))
        return CurveSeries(
            loss=loss,
            baseline=None if base is None else _loss(c, services, base, span),
            baseline_name="" if base is None else base.name,
            proof=None if panel is None else _stat(c, services, run, span, panel[0].tensor, panel[1]),
            proof_title="" if panel is None else f"{panel[0].label}, {panel[0].tensor}",
            proof_unit="" if panel is None else panel[0].unit,
        )
    except (Damaged, Unreachable):
        return None


def _loss(c: Connection, services: Services, run: RunRecord, span: Span) -> dict[str, Any] | None:
    known = runs.series(c, run.id).get((kinds.SCALARS, "loss"))
    if not known:
        return None
    seen = series_reads.view(reading.source(c, services, run, known[0]), span)
    found = columns_of(series_reads.scalars(seen, ["loss"], POINTS)["loss"], first=seen.first)
    return found if found["step"] else None


def _stat(
    c: Connection, services: Services, run: RunRecord, span: Span, tensor: str, stat: str
) -> dict[str, Any] | None:
    known = runs.series(c, run.id)
    stored = reading.stored_stats(known)
    if not needs(stat, stored):
        return None
    source = reading.source(c, services, run, reading.stat_rank(known, stat, None))
    seen = series_reads.view(source, Span(span.first, min(span.last, MAX_STEP)), with_tensors=True)
    tensors = services.descriptions.get(c, run).tensors
    level = series_reads.series(seen, stat, tensor, POINTS, stored=stored, tensors=tensors)
    found = columns_of(level, first=seen.first)
    return found if found["step"] else None


def _alerts(c: Connection, run: RunRecord) -> tuple[tuple[AlertLine, ...], int]:
    """The newest events of the run's alerts, newest last, and how many there are before them."""
    found = alerts.history(c, [alert.id for alert in alerts.of_run(c, run.id)], newest=MAX_EVENTS)
    events = sorted((event for some in found.values() for event in some), key=lambda event: event.time)
    lines = tuple(
        AlertLine(
            moment(event.time), event.event, event.by, event.before or "", event.after or "", event.note or ""
        )
        for event in events[-MAX_EVENTS:]
    )
    return lines, len(events) - len(lines)
