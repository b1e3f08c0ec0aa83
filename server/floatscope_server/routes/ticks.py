"""What the axis of a chart over steps says in tokens or time."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from fastapi import APIRouter, Query, Request
from sqlalchemy import Connection
from starlette.responses import Response

from floatscope_dashboards.say import ENGLISH, Say
from floatscope_server import caching
from floatscope_server.answers import Json, Numbers
from floatscope_server.errors import Refused
from floatscope_server.routes import reading
from floatscope_server.routes.fields import FromStep, RunId, ToStep
from floatscope_server.services import Services, Use
from floatscope_server.store import batches, runs
from floatscope_server.store.runs import RunRecord
from floatscope_server.store.stretches import Span
from floatscope_server.ticks import Tick, amount_ticks, time_ticks
from floatscope_server.views.run_curves import curves_within
from floatscope_server.views.run_rows import rank

router = APIRouter(tags=["series"])

BINS = 400  # of the tokens, between whose edges a total is linear
SAMPLES = 24  # steps of which the time is looked up


@router.get("/runs/{run_id}/ticks", response_class=Json)
def ticks(
    request: Request,
    run_id: RunId,
    services: Use,
    axis: Annotated[Literal["step", "tokens", "time"], Query(description="What the axis says.")] = "step",
    from_step: FromStep = None,
    to_step: ToStep = None,
    count: Annotated[int, Query(ge=1, le=20, description="About so many.")] = 8,
    zone: Annotated[str, Query(max_length=64, description="Of the reader's clock, an IANA name.")] = "UTC",
    lang: Annotated[str, Query(max_length=16, description="Language of day names.")] = ENGLISH,
) -> Response:
    """Marks for a chart over steps: ``ticks`` of {step, text}, the axis' ``title``, why there are none.

    Tokens are counted from the first step that is stored, of the run's lowest rank.
    """
    clock = _zone(zone)
    say = services.pages.say(lang)
    with services.database.read() as c:
        run = runs.get(c, run_id)
        headers = caching.of_run(request, run)
        span = reading.span(run, from_step, to_step, None)
        if axis == "step" or run.last_step is None:
            made, title, why = _steps(span, count), say("Step"), None
        elif axis == "tokens":
            made, title, why = _tokens(c, services, run, span, count, say)
        else:
            steps, times = _times(c, run, span)
            made, title = time_ticks(steps, times, clock, count, say.language), say("Time, {zone}", zone=zone)
            why = None if made else say("The times of these steps are not known.")
    return Numbers(
        {
            "run_id": run_id,
            "axis": axis,
            "title": title,
            "ticks": [{"step": tick.step, "text": tick.text} for tick in made],
            "why": why,
        },
        headers=headers,
    )


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError) as error:  # unknown, not a name at all, or a folder
        raise Refused("zone", "the IANA name of a time zone", name) from error


def _steps(span: Span, count: int) -> list[Tick]:
    edges = (float(span.first), float(span.last))
    return amount_ticks(edges, edges, count)


def _tokens(
    c: Connection, services: Services, run: RunRecord, span: Span, count: int, say: Say
) -> tuple[list[Tick], str, str | None]:
    found = curves_within(c, run, Span(0, span.last), ("tokens",), BINS, services.objects, services.warm).get(
        "tokens"
    )
    title = say("Tokens")
    if run.first_step is not None and run.first_step > 1:
        title = say("Tokens from step {step} on", step=say.step(run.first_step))
    if found is None:
        return [], title, say("This run does not log how many tokens a step has (scalar tokens).")
    steps: list[float] = []
    totals: list[float] = []
    total = 0.0
    for step, mean, number in zip(found.step, found.mean, found.count, strict=True):
        steps.append(float(step))
        totals.append(total)
        total += 0.0 if mean != mean else mean * number
    end = min(span.last, run.last_step or span.last)
    steps.append(float(max(end, found.step[-1]) + 1))
    totals.append(total)
    inside = _cut(steps, totals, span)
    made = amount_ticks(*inside, count)
    return made, title, None if made else say("No tokens were counted in these steps.")


def _cut(steps: list[float], totals: list[float], span: Span) -> tuple[list[float], list[float]]:
    """From the bin in which the span begins on."""
    first = max((index for index, step in enumerate(steps) if step <= span.first), default=0)
    return steps[first:], totals[first:]


def _times(c: Connection, run: RunRecord, span: Span) -> tuple[list[float], list[float]]:
    at = rank(c, run)
    low = max(span.first, run.first_step or 0)
    high = min(span.last, run.last_step or 0)
    wanted: list[int] = sorted({low + (high - low) * n // (SAMPLES - 1) for n in range(SAMPLES)})
    known: list[tuple[int, Any]] = [
        (step, batches.time_of(c, run.id, step=step, rank=at)) for step in wanted if low <= step <= high
    ]
    pairs = [(float(step), float(time)) for step, time in known if time is not None]
    return [step for step, _time in pairs], [time for _step, time in pairs]
