"""Runs: create or resume, list, show, change, finish, delete, verdict."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import anyio.to_thread
from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from floatscope.protocol import strict_json
from floatscope.protocol.errors import ProtocolError
from floatscope.protocol.names import MAX_NAME_BYTES, RUN_ID_PATTERN, check_run_id
from floatscope.protocol.runinfo import RunInfo, text
from floatscope_dashboards.warm_up import is_warming_up
from floatscope_server import body, caching
from floatscope_server.answers import Json, Numbers
from floatscope_server.callers import By
from floatscope_server.errors import Refused, from_protocol
from floatscope_server.routes import fields
from floatscope_server.routes.fields import Cursor, Limit, RunId, Text
from floatscope_server.services import Use
from floatscope_server.store import alerts, runs, verdicts
from floatscope_server.store.runs import RankPosition, RunRecord
from floatscope_server.times import iso

router = APIRouter(tags=["runs"])

STATUSES = ("running", "stalled", "finished", "failed", "crashed")
HEALTHS = ("healthy", "warming_up", "watch", "warning", "critical")


class RunChange(BaseModel):
    """What may be changed of a run; a field that is not given stays, ``baseline: null`` takes the baseline
    away.
    """

    model_config = ConfigDict(extra="forbid")

    name: str | None = Field(default=None, min_length=1, max_length=MAX_NAME_BYTES)
    project: str | None = Field(default=None, min_length=1, max_length=MAX_NAME_BYTES)
    baseline: str | None = Field(default=None, pattern=f"^{RUN_ID_PATTERN}$")


class RunEnd(BaseModel):
    """How a run ended."""

    model_config = ConfigDict(extra="ignore")

    status: Literal["finished", "failed", "crashed"]
    reason: str | None = None


_OPEN: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}},
    "responses": {"200": {"description": "resumed"}, "201": {"description": "created"}},
}


@router.post("/runs", openapi_extra=_OPEN, response_class=Json)
async def open_run(request: Request, services: Use) -> Response:
    """Creates a run, or resumes the one with this ``run_id``."""
    content = await body.read(request)
    return await anyio.to_thread.run_sync(_open, services, content)


def _open(services: Use, content: bytes) -> Response:
    try:
        value = strict_json.loads(content)
        given = RunInfo.from_json(value)
        run_id = given.extra.get("run_id")
        if run_id is not None:
            check_run_id(run_id)
    except ProtocolError as error:
        raise from_protocol(error) from error
    opened = services.lifecycle.open(run_id, given)
    ranks = opened.ranks or (RankPosition(0),)
    answer = {
        "run_id": opened.run_id,
        "expected_seq": {str(at.rank): at.next_seq for at in ranks},
        "segment": {str(at.rank): at.segment for at in ranks},
        "settings": {},
        "url": f"{services.settings.public_url}/runs/{opened.run_id}",
    }
    return Json(answer, status_code=201 if opened.created else 200)


@router.get("/runs", response_class=Json)
def list_runs(
    services: Use,
    project: Text = None,
    status: Annotated[str | None, Query(description="One or more of " + ", ".join(STATUSES))] = None,
    health: Annotated[
        str | None,
        Query(
            description="One or more of " + ", ".join(HEALTHS) + ". A run that is too young to be judged is "
            "warming_up and not healthy."
        ),
    ] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """Runs, newest first."""
    with services.database.read() as c:
        found = runs.listed(
            c,
            project=None if project is None else fields.name(project, field="project"),
            status=fields.listed(status, field="status", allowed=STATUSES),
            health=fields.listed(health, field="health", allowed=HEALTHS),
            before=fields.cursor(cursor),
            limit=limit + 1,
        )
        firing = alerts.firing(c, [run.id for run in found])
    more = found[limit - 1].id if len(found) > limit else None
    items = [shown(run) | {"firing_alerts": firing.get(run.id, 0)} for run in found[:limit]]
    return Numbers({"items": items, "next_cursor": fields.next_cursor(more)})


@router.get("/runs/{run_id}", response_class=Json)
def show_run(run_id: RunId, services: Use) -> Response:
    """One run with where each of its ranks stands."""
    with services.database.read() as c:
        run = runs.get(c, run_id)
        described = runs.info(c, run.id).to_json()
        positions = runs.positions(c, run.id)
        firing = alerts.firing(c, [run.id]).get(run.id, 0)
    tensors = described.pop("tensors", {})
    ranks = [
        {"rank": at.rank, "expected_seq": at.next_seq, "segment": at.segment, "last_step": at.last_step}
        for at in positions
    ]
    details = {"ranks": ranks, "tensor_count": len(tensors), "firing_alerts": firing, "info": described}
    return Json(shown(run) | details)


@router.patch("/runs/{run_id}", openapi_extra=fields.body_of(RunChange), response_class=Json)
async def change_run(request: Request, run_id: RunId, services: Use, by: By) -> Response:
    """Changes name, project or baseline.

    With another baseline the run is judged anew from its stored steps.
    """
    wanted = await fields.read_json(request, RunChange)
    given = wanted.model_dump(exclude_unset=True)
    for key in ("name", "project"):
        if key in given:
            if given[key] is None:
                raise Refused(key, "a text, or not this field at all", "null")
            fields.name(given[key], field=key)
    await anyio.to_thread.run_sync(services.lifecycle.change, run_id, given, by)
    return await anyio.to_thread.run_sync(show_run, run_id, services)


@router.delete("/runs/{run_id}", response_class=Json)
def delete_run(run_id: RunId, services: Use, by: By) -> Response:
    """Deletes the run and everything stored of it. It does not come back."""
    services.lifecycle.delete(run_id, by)
    return Json({"deleted": run_id})


@router.post("/runs/{run_id}/finish", openapi_extra=fields.body_of(RunEnd), response_class=Json)
async def finish_run(request: Request, run_id: RunId, services: Use) -> Response:
    """Marks how the run ended. Late batches are still accepted."""
    end = await fields.read_json(request, RunEnd)
    try:
        reason = None if end.reason is None else text(end.reason, field="reason")
    except ProtocolError as error:
        raise from_protocol(error) from error

    def finish() -> None:
        services.lifecycle.finish(run_id, status=end.status, reason=reason)

    await anyio.to_thread.run_sync(finish)
    return await anyio.to_thread.run_sync(show_run, run_id, services)


@router.get("/runs/{run_id}/verdict", response_class=Json)
def show_verdict(request: Request, run_id: RunId, services: Use) -> Response:
    """The verdict after the last step that was judged."""
    with services.database.read() as c:
        run = runs.get(c, run_id)
        verdict = verdicts.find(c, run.id)
    answer = Json(told(run, verdict or {}))
    return caching.answered(request, caching.tag(bytes(answer.body)), lambda: answer)


def told(run: RunRecord, verdict: dict[str, Any]) -> dict[str, Any]:
    """The verdict with a note if the diagnosis failed on part of the run."""
    if run.diagnosis_error is None:
        return verdict
    source = verdict.get("source", {})
    note = f"the diagnosis failed on some steps, which are stored and not judged: {run.diagnosis_error}"
    return {**verdict, "source": {**source, "notes": [*source.get("notes", []), note]}}


def shown(run: RunRecord) -> dict[str, Any]:
    """A run as lists show it."""
    return {
        "run_id": run.run_id,
        "name": run.name,
        "project": run.project,
        "baseline": run.baseline,
        "recipe": dict(run.recipe),
        "status": run.status,
        "reason": run.reason,
        "health": run.health,
        "warming_up": is_warming_up(run),
        "summary": run.summary,
        "cause": run.cause,
        "onset_step": run.onset_step,
        "first_step": run.first_step,
        "last_step": run.last_step,
        "last_loss": strict_json.plain(run.last_loss),
        "created": iso(run.created),
        "last_seen": None if run.last_seen is None else iso(run.last_seen),
        "diagnosis_error": run.diagnosis_error,
    }
