"""Fills what the run's page knows besides its verdict: times, tokens, alerts, a baseline, events."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from floatscope.protocol.names import MAX_STEP
from floatscope_dashboards.run_facts import AlertFacts, AlertLine, BaselineMatch, RunFacts, StepEvent
from floatscope_server.callers import Caller
from floatscope_server.scopes import INGEST, WRITE
from floatscope_server.store import alerts, audit, batches, runs, silences
from floatscope_server.store.alerts import AlertRecord
from floatscope_server.store.runs import RunRecord
from floatscope_server.store.stretches import Span
from floatscope_server.store.tiles import Objects
from floatscope_server.store.warm import Warm
from floatscope_server.times import moment
from floatscope_server.views.kpis import loss_change
from floatscope_server.views.run_curves import Curves, curves_within
from floatscope_server.views.run_rows import rank, recipe_words

PLAIN = ("bf16", "fp32")
LOOKED_AT = 50  # newest runs of the project among which a baseline is looked for
COMPARED = 3  # of them that are compared by their data
ALERTING = ("warning", "critical")
LINES = 50  # of each alert's history
RESUMES = 12  # newest resumes that get a time
ACTS = 50  # newest changes of the run by people
MOST_ALERTS = 200  # newest of the run, beside those of its worst findings
MOST_FINDINGS = 50


def run_facts(
    c: Connection,
    run: RunRecord,
    *,
    curves: Curves,
    first_broken: int | None,
    verdict: Mapping[str, Any],
    rules: Mapping[str, str],
    by: Caller,
    objects: Objects | None,
    warm: Warm | None,
) -> RunFacts:
    """All that is known. first_broken: the first step whose loss is not finite."""
    at = rank(c, run)
    onset = run.onset_step
    loss = curves.get("loss")
    baseline = None if run.baseline is None else runs.find(c, run.baseline)
    plain = run.recipe.get("name") in PLAIN
    return RunFacts(
        onset_time=None if onset is None else _time(c, run, onset, at),
        tokens_since_onset=None if onset is None else _tokens(c, run, curves, onset, objects, warm),
        loss_since_onset=None
        if loss is None
        else loss_change(loss, onset if run.health in ALERTING else None),
        pace_s=run.pace_s,
        alerts=_alerts(c, run, verdict),
        match=None if baseline is not None or plain else _match(c, run, curves, objects, warm),
        baseline_name="" if baseline is None else baseline.name,
        rules=rules,
        events=tuple(_events(c, run, at, curves, first_broken, verdict)),
        may_write=WRITE in by.scopes,
        may_ingest=INGEST in by.scopes,
    )


def first_broken_step(
    c: Connection, run: RunRecord, curves: Curves, objects: Objects | None, warm: Warm | None
) -> int | None:
    """The first step whose loss or gradient norm is NaN or Inf: from the bin that has it down to the step."""
    found: list[int] = []
    for name in ("loss", "grad_norm"):
        curve = curves.get(name)
        begin = None if curve is None else curve.first_broken()
        if curve is None or begin is None:
            continue
        width = curve.width
        while width > 1:
            span = Span(begin, begin + width - 1)
            inner = curves_within(c, run, span, (name,), width, objects, warm).get(name)
            finer = None if inner is None else inner.first_broken()
            if inner is None or finer is None or inner.width >= width:
                break
            begin, width = finer, inner.width
        found.append(begin)
    return min(found, default=None)


def _time(c: Connection, run: RunRecord, step: int, at: int) -> datetime | None:
    found = batches.time_of(c, run.id, step=step, rank=at)
    return None if found is None else moment(found)


def _tokens(
    c: Connection, run: RunRecord, curves: Curves, onset: int, objects: Objects | None, warm: Warm | None
) -> float | None:
    """Tokens of the steps from the onset on, None where they are not logged."""
    if "tokens" not in curves:
        return None
    found = curves_within(c, run, Span(onset, MAX_STEP), ("tokens",), 4, objects, warm).get("tokens")
    if found is None:
        return None
    total = sum(m * n for m, n in zip(found.mean, found.count, strict=True) if math.isfinite(m))
    return total or None


def _alerts(c: Connection, run: RunRecord, verdict: Mapping[str, Any]) -> tuple[AlertFacts, ...]:
    """Of the findings that the page leads with, and the newest: one run can have thousands."""
    leads = [str(item.get("id")) for item in (verdict.get("findings") or [])[:MOST_FINDINGS]]
    newest = alerts.listed(c, run_id=run.run_id, limit=MOST_ALERTS)
    chosen = {alert.id: alert for alert in (*alerts.of_run(c, run.id, findings=leads), *newest)}
    found = sorted(chosen.values(), key=lambda alert: alert.number)
    history = alerts.history(c, [alert.id for alert in found], newest=LINES)
    ends = silences.of_ids(c, {alert.silence for alert in found if alert.silence is not None})
    return tuple(
        _alert(alert, history[alert.id], None if (s := ends.get(alert.silence or "")) is None else s.ends)
        for alert in found
    )


def _alert(alert: AlertRecord, history: Collection[alerts.AlertEvent], ends: float | None) -> AlertFacts:
    onset = alert.finding.get("onset_step")
    return AlertFacts(
        id=alert.id,
        finding=str(alert.finding.get("id") or alert.id),
        state=alert.state,
        severity=alert.severity,
        summary=str(alert.finding.get("summary") or ""),
        onset_step=onset if isinstance(onset, int) else None,
        since=moment(alert.first_seen),
        mute_until=None if alert.mute_until is None else moment(alert.mute_until),
        silence_ends=None if ends is None else moment(ends),
        lines=tuple(
            AlertLine(moment(line.time), line.event, line.by, line.note or "", line.before, line.after)
            for line in history
        ),
    )


def _match(
    c: Connection, run: RunRecord, curves: Curves, objects: Objects | None, warm: Warm | None
) -> BaselineMatch | None:
    """The BF16 or FP32 run of the project that has most steps, one with the same data first."""
    around = runs.listed(c, project=run.project, limit=LOOKED_AT)
    found = [
        other
        for other in around
        if other.id != run.id and other.recipe.get("name") in PLAIN and other.last_step is not None
    ]
    found.sort(key=lambda other: (other.last_step or 0, other.id), reverse=True)
    seen = [(other, _same_data(c, run, other, curves, objects, warm)) for other in found[:COMPARED]]
    seen.sort(key=lambda pair: {True: 0, None: 1, False: 2}[pair[1]])
    if not seen:
        return None
    other, same = seen[0]
    return BaselineMatch(other.run_id, other.name, recipe_words(other.recipe), other.last_step, same)


def _same_data(
    c: Connection,
    run: RunRecord,
    other: RunRecord,
    curves: Curves,
    objects: Objects | None,
    warm: Warm | None,
) -> bool | None:
    """Whether both saw the same batch at the last step that both have."""
    if "data_id" not in curves or run.last_step is None or other.last_step is None:
        return None
    step = min(run.last_step, other.last_step)
    ids = []
    for each in (run, other):
        found = curves_within(c, each, Span(step, step), ("data_id",), 1, objects, warm).get("data_id")
        if found is None or not found.last:
            return None
        ids.append(found.last[-1])
    return bool(ids[0] == ids[1])


def _events(
    c: Connection,
    run: RunRecord,
    at: int,
    curves: Curves,
    first_broken: int | None,
    verdict: Mapping[str, Any],
) -> Iterator[StepEvent]:
    if first_broken is not None:
        yield StepEvent("nonfinite", first_broken, _time(c, run, first_broken, at))
    for step in resumes(verdict)[-RESUMES:]:
        yield StepEvent("resumed", step, _time(c, run, step, at))
    throttle = curves.get("gpu_throttle")
    if throttle is not None:
        slow = [s for s, high in zip(throttle.step, throttle.high, strict=True) if high > 0]
        if slow:
            until = min(slow[-1] + throttle.width - 1, run.last_step or slow[-1])
            yield StepEvent("throttled", slow[0], _time(c, run, slow[0], at), until)
    for act in audit.listed(c, action="run.change", target=run.run_id, limit=ACTS):
        if isinstance(act.detail, Mapping) and "baseline" in act.detail:
            yield StepEvent("baseline", time=moment(act.time), by=act.who)


def resumes(verdict: Mapping[str, Any]) -> list[int]:
    """First steps of the segments after the first, as the verdict has them."""
    source = verdict.get("source")
    segments = source.get("segments") if isinstance(source, Mapping) else None
    found = []
    for item in segments if isinstance(segments, list) else ():
        step = item.get("first_step") if isinstance(item, Mapping) else None
        number = item.get("segment") if isinstance(item, Mapping) else None
        if isinstance(step, int) and isinstance(number, int) and number > 0:
            found.append(step)
    return sorted(found)
