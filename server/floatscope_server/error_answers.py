"""Errors in one shape: problem+json, or a page for people. What is not foreseen is logged whole, told in
general.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DatabaseError, InternalError, OperationalError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from floatscope_server.answers import told
from floatscope_server.caching import Unchanged
from floatscope_server.database import AWAY
from floatscope_server.errors import Damaged, Problem
from floatscope_server.routes import fields
from floatscope_server.services import Services

RETRY_LATER = {"Retry-After": "5"}

_log = logging.getLogger(__name__)


def answer_errors(app: FastAPI) -> None:
    """Has the application answer every error so."""

    def answer(request: Request, problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
        services: Services = app.state.services
        return told(request, problem, pages=services.pages, headers=headers)

    @app.exception_handler(Problem)
    async def on_problem(request: Request, error: Problem) -> Response:
        return answer(request, error)

    @app.exception_handler(Unchanged)
    async def on_unchanged(_request: Request, found: Unchanged) -> Response:
        return Response(status_code=304, headers=found.headers)

    @app.exception_handler(RequestValidationError)
    async def on_invalid(request: Request, error: RequestValidationError) -> Response:
        return answer(request, fields.refused(list(error.errors())))

    @app.exception_handler(HTTPException)
    async def on_http(request: Request, error: HTTPException) -> Response:
        what = f"{request.method} {request.url.path}"
        if error.status_code == 404:
            problem = Problem(
                404, "Not found", f"there is nothing at {what}", hint="/docs lists the API, / the runs"
            )
        else:
            problem = Problem(error.status_code, str(error.detail), f"{what}: {error.detail}")
        return answer(request, problem, error.headers)

    async def on_storage(request: Request, error: Exception) -> Response:
        what = f"{request.method} {request.url.path}"
        said = error.orig if isinstance(error, OperationalError) else error
        _log.error("%r failed: the database says: %s", what, str(said).strip())
        detail = (
            "the database could not take or give the data now (full, locked or away); nothing was changed"
        )
        hint = "send it again later; the server's log says more"
        return answer(
            request, Problem(503, "Storage is not available", detail, hint=hint, headers=RETRY_LATER)
        )

    for kind in AWAY:
        app.add_exception_handler(kind, on_storage)

    @app.exception_handler(DatabaseError)
    async def on_damage(request: Request, error: DatabaseError) -> Response:
        if type(error) not in (DatabaseError, InternalError):  # those say that the file itself is damaged
            raise error
        _log.error("%r failed: the database says: %s", f"{request.method} {request.url.path}", error.orig)
        return answer(request, Damaged("a page of the database"))

    @app.exception_handler(Exception)
    async def on_fault(request: Request, _error: Exception) -> Response:
        _log.error("%r failed", f"{request.method} {request.url.path}")
        detail = "the server failed on this request; its log says why"
        return answer(request, Problem(500, "Server fault", detail, hint="please report it"))
