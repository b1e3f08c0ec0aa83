"""Two runs beside each other: how far apart they are, since when, and where first."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from floatscope.protocol.names import MAX_STEP, RUN_ID_PATTERN
from floatscope_diagnostics.compare.drawing import Range
from floatscope_server import caching, comparing
from floatscope_server.answers import Numbers
from floatscope_server.asked_limits import AskedLimits, asked_limits
from floatscope_server.compared_notes import pair_notes
from floatscope_server.comparing import MAX_VALUES, Asked
from floatscope_server.errors import Refused
from floatscope_server.routes.fields import FromStep, ToStep
from floatscope_server.services import Use

router = APIRouter(tags=["runs"])

DEFAULT_POINTS = 900
MAX_POINTS = 4000

Id = Annotated[str, Query(pattern=f"^{RUN_ID_PATTERN}$")]
Points = Annotated[int, Query(ge=1, le=MAX_POINTS, description="At most this many bins of steps.")]
ShownStep = Annotated[int | None, Query(ge=0, le=MAX_STEP)]


@router.get("/compare", response_class=Numbers)
def compare_runs(
    request: Request,
    services: Use,
    run: Id,
    baseline: Id,
    from_step: FromStep = None,
    to_step: ToStep = None,
    margin: Annotated[
        str | None, Query(max_length=64, description="Loss difference that matters, in nats.")
    ] = None,
    min_speedup: Annotated[
        str | None, Query(max_length=64, description="Throughput over the baseline's, at least.")
    ] = None,
    min_saving: Annotated[
        str | None, Query(max_length=64, description="Saving of cost a token, at least, in percent.")
    ] = None,
    price_ratio: Annotated[
        str | None, Query(max_length=64, description="Price of the run's GPU hour over the baseline's.")
    ] = None,
    planned_steps: Annotated[
        str | None, Query(max_length=64, description="Steps of the real training.")
    ] = None,
    preset: Annotated[str | None, Query(max_length=256, description="Named limits, by comma.")] = None,
    points: Points = DEFAULT_POINTS,
    shown_from: ShownStep = None,
    shown_to: ShownStep = None,
    tensors: Annotated[bool, Query(description="Look for the tensor that parts first, too.")] = True,
) -> Response:
    """The document of ``floatscope compare --json`` for two stored runs, with series to draw.

    ``from`` and ``to`` say which steps are compared, ``shown_from`` and ``shown_to`` which of them the series
    cover. ``go`` is the decision by the limits that are given: go, no_go or not_yet, with a gate for each
    question. ``tensor_rows``: steps whose tensor statistics were looked at, of run and baseline; long runs
    have more than are read.
    """
    if from_step is not None and to_step is not None and to_step < from_step:
        raise Refused("from", f"a step not above to={to_step}", from_step)
    limits = _limits(
        margin=margin,
        min_speedup=min_speedup,
        min_saving=min_saving,
        price_ratio=price_ratio,
        planned_steps=planned_steps,
        preset=preset,
    )
    with services.database.read() as c:
        records = comparing.both(c, run, baseline)
        own, base = records
        judged = [(record.health, record.version) for record in records]
        etag = caching.tag(*map(comparing.state, records), judged, request.url.query)
        headers = {"ETag": etag, "Cache-Control": caching.CHECK_EACH_TIME}
        if caching.holds(request, etag):
            raise caching.Unchanged(headers)
        asked = Asked.by(limits, from_step, to_step, MAX_VALUES if tensors else 0)
        found = comparing.compared(c, services, own, base, asked)
        go = comparing.decided(c, services, own, base, asked, found=found, limits=limits.limits)
        notes = pair_notes(own, base, found.found.run.run, found.found.base.run)
    series = found.series(points=points, shown=_shown(shown_from, shown_to, found))
    rows = found.rows
    read = None if rows is None else {"read": list(rows.read), "logged": list(rows.logged)}
    extra = {"tensor_rows": read, "notes": [note.to_json() for note in notes], "series": series}
    return Numbers(found.document(go) | extra, headers=headers)


def _limits(**given: str | None) -> AskedLimits:
    """The limits of the address. Raises Refused for the first that cannot be used."""
    found = asked_limits({name: text for name, text in given.items() if text is not None})
    for name, text, expected in found.bad:
        raise Refused(name, expected, text)
    return found


def _shown(first: int | None, last: int | None, found: comparing.Compared) -> Range | None:
    if first is None and last is None:
        return None
    sides = (found.found.run, found.found.base)
    low = min(int(side.step[0]) for side in sides) if first is None else first
    high = max(int(side.step[-1]) for side in sides) if last is None else last
    return Range(low, max(low, high))
