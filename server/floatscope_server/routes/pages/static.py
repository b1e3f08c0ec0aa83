"""Styles, scripts and plotly.js."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from floatscope_server.services import Use

router = APIRouter(include_in_schema=False)


@router.get("/static/{path:path}")
def static_file(request: Request, path: str, services: Use) -> Response:
    """One file."""
    return services.static_files.answer(request)
