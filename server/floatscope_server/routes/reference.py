"""The interface described: the OpenAPI document for machines, a page for people."""

from __future__ import annotations

import anyio.to_thread
from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from floatscope_server import caching
from floatscope_server.services import Use

router = APIRouter(include_in_schema=False)


@router.get("/openapi.json")
async def openapi(request: Request, services: Use) -> Response:
    """The OpenAPI document."""
    made = await anyio.to_thread.run_sync(services.reference.of, request.app)
    return caching.answered(request, made.etag, lambda: Response(made.content, media_type="application/json"))


@router.get("/docs")
async def docs(request: Request, services: Use) -> Response:
    """The interface in words, made from its OpenAPI document; it loads nothing from elsewhere."""
    made = await anyio.to_thread.run_sync(services.reference.of, request.app)
    return HTMLResponse(made.page)
