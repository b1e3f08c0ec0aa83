"""The frame of a page for one request: language, alerts that wait, what the reader may do."""

from __future__ import annotations

import time

from fastapi import Request
from sqlalchemy import Connection

from floatscope_dashboards.page import Shell
from floatscope_server.callers import Caller
from floatscope_server.language import say_of
from floatscope_server.services import Services
from floatscope_server.store import alerts
from floatscope_server.times import moment


def shell_of(c: Connection, request: Request, services: Services, by: Caller) -> Shell:
    """The frame of a page inside the product."""
    return Shell(
        say=say_of(request, services.pages),
        version=services.version,
        now=moment(time.time()),
        alerts_open=alerts.count_firing(c),
        may=by.scopes,
        reader=by.name,
        session=by.session,
        address=services.settings.public_url,
    )
