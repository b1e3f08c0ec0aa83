"""Pages for people."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from floatscope.protocol.names import MAX_STEP
from floatscope_server import page_views
from floatscope_server.routes import fields
from floatscope_server.routes.fields import ResourceId, RunId, Text
from floatscope_server.routes.runs import told
from floatscope_server.services import Use
from floatscope_server.store import alerts, runs, verdicts

router = APIRouter(include_in_schema=False)


@router.get("/")
def overview(services: Use, project: Text = None) -> Response:
    """All runs, or those of a project."""
    wanted = fields.name(project, field="project") if project else None
    with services.database.read() as c:
        view = page_views.runs_view(
            c, project=wanted, version=services.version, objects=services.objects, warm=services.warm
        )
    return HTMLResponse(services.pages.runs(view))


@router.get("/runs/{run_id}")
def run_page(
    run_id: RunId, services: Use, at: Annotated[int | None, Query(ge=0, le=MAX_STEP)] = None
) -> Response:
    """One run."""
    with services.database.read() as c:
        run = runs.get(c, run_id)
        verdict = told(run, verdicts.find(c, run.id) or {})
        view = page_views.run_view(
            c,
            run,
            at=at,
            verdict=verdict,
            version=services.version,
            objects=services.objects,
            warm=services.warm,
        )
    return HTMLResponse(services.pages.run(view))


@router.get("/alerts/{alert_id}")
def alert_page(alert_id: ResourceId, services: Use) -> Response:
    """The run of an alert, at the step where it began: messages lead here."""
    with services.database.read() as c:
        alert = alerts.get(c, alert_id)
    onset = alert.finding.get("onset_step")
    at = f"?at={onset}" if isinstance(onset, int) else ""
    return RedirectResponse(f"/runs/{alert.run_id}{at}", status_code=303)


@router.get("/static/{path:path}")
def static_file(request: Request, path: str, services: Use) -> Response:
    """Styles, scripts and plotly.js."""
    return services.static_files.answer(request)
