"""Alerts: all of them as incidents, and one in detail. Reading only: what is done to an alert goes through
the API, so that no link in a message does anything.
"""

from __future__ import annotations

import re
import time

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from floatscope_dashboards.alert_filters import asked
from floatscope_dashboards.alerts_page import alerts_page
from floatscope_dashboards.family_words import FAMILIES
from floatscope_server.callers import By, Caller
from floatscope_server.errors import AlertNotFound
from floatscope_server.services import Services, Use
from floatscope_server.views.alerts import alerts_view
from floatscope_server.views.shell import shell_of

router = APIRouter(include_in_schema=False)

_ID = re.compile(r"[A-Za-z0-9._:-]{1,160}")


@router.get("/alerts")
def all_alerts(request: Request, services: Use, by: By) -> Response:
    """What is open, and what was resolved lately."""
    return _shown(request, services, by)


@router.get("/alerts/{alert_id}")
def alert_page(request: Request, alert_id: str, services: Use, by: By) -> Response:
    """The same with one alert in detail: messages lead here."""
    if not _ID.fullmatch(alert_id):
        raise AlertNotFound(alert_id[:160])
    return _shown(request, services, by, opened=alert_id)


def _shown(request: Request, services: Services, by: Caller, *, opened: str | None = None) -> Response:
    wanted = asked(request.query_params.multi_items(), families=FAMILIES, reader=by.name)
    with services.database.read() as c:
        shell = shell_of(c, request, services, by)
        view = alerts_view(c, wanted, rules=services.rule_book.texts, now=time.time(), opened=opened)
    return HTMLResponse(services.pages.show(alerts_page(view, shell.say), shell))
