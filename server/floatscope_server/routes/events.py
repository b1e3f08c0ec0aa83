"""Live events (SSE) for pages."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.responses import Response, StreamingResponse

from floatscope.protocol.names import RUN_ID_PATTERN
from floatscope_server.services import Use

router = APIRouter(tags=["events"])

MAX_ID_DIGITS = 20


@router.get("/events", response_class=StreamingResponse)
async def events(
    services: Use,
    run: Annotated[str | None, Query(pattern=f"^{RUN_ID_PATTERN}$", description="Only of this run.")] = None,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Streams ``tick``, ``verdict``, ``run`` and ``alert`` events; goes on after ``Last-Event-ID``."""
    text = last_event_id or ""
    last_id = int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_ID_DIGITS else None
    stream = services.events.read(run=run, last_id=last_id)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # nginx would hold events back
    return StreamingResponse(stream, media_type="text/event-stream", headers=headers)
