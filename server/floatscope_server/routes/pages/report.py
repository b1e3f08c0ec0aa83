"""Printable reports: of a run, and of a comparison."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from floatscope_dashboards.compare_page import address
from floatscope_dashboards.report_page import compare_report_page, report_page, report_policy
from floatscope_server import comparing
from floatscope_server.callers import By
from floatscope_server.comparing import Asked
from floatscope_server.routes.fields import RunId
from floatscope_server.routes.runs import told
from floatscope_server.services import Use
from floatscope_server.store import runs, verdicts
from floatscope_server.views.compare import compare_view, found_pair, read_query
from floatscope_server.views.report import report_view
from floatscope_server.views.shell import shell_of

router = APIRouter(include_in_schema=False)

POINTS = 300


def _headers(name: str, *, download: bool) -> dict[str, str]:
    headers = {"Content-Security-Policy": report_policy()}
    if download:
        headers["Content-Disposition"] = f'attachment; filename="floatscope-{name}.html"'
    return headers


@router.get("/runs/{run_id}/report")
def run_report(request: Request, run_id: RunId, services: Use, by: By) -> Response:
    """The report of one run, as a page or with ``download=1`` as a file."""
    download = request.query_params.get("download") == "1"
    with services.database.read() as c:
        shell = shell_of(c, request, services, by)
        run = runs.get(c, run_id)
        verdict = told(run, verdicts.find(c, run.id) or {})
        view = report_view(c, services, run, verdict, shell.say)
    page = report_page(view, shell.say, download=download)
    return HTMLResponse(services.pages.show(page, shell), headers=_headers(run_id, download=download))


@router.get("/compare/report")
def compare_report(request: Request, services: Use, by: By) -> Response:
    """The report of a comparison; without two runs it leads to where they are chosen."""
    download = request.query_params.get("download") == "1"
    query = read_query(request.query_params)
    series: dict[str, Any] | None = None
    with services.database.read() as c:
        shell = shell_of(c, request, services, by)
        own, other = found_pair(c, query)
        if own is None or other is None or own.id == other.id:
            return RedirectResponse(address(query.run, query.baseline).rstrip("?"), status_code=303)
        view = compare_view(c, services, own, other, query, wait=True)
        if view.document is not None:
            asked = Asked.by(query.limits, query.first, query.last)
            series = comparing.compared(c, services, own, other, asked).series(points=POINTS)
    asked_for = (query.limits.given, query.first, query.last)
    page = compare_report_page(
        view,
        series,
        shell.say,
        version=services.version,
        url=services.settings.public_url + address(own.run_id, other.run_id, *asked_for),
        download=download,
    )
    name = f"{own.run_id}-against-{other.run_id}"
    return HTMLResponse(services.pages.show(page, shell), headers=_headers(name, download=download))
