"""Live events (SSE) for pages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Literal, cast

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response, StreamingResponse

from floatscope.protocol.names import RUN_ID_PATTERN
from floatscope_server.doorkeeper import Doorkeeper
from floatscope_server.gate import Admitted
from floatscope_server.services import Use

router = APIRouter(tags=["events"])

MAX_ID_DIGITS = 20


@router.get("/events", response_class=StreamingResponse)
async def events(
    request: Request,
    services: Use,
    run: Annotated[str | None, Query(pattern=f"^{RUN_ID_PATTERN}$", description="Only of this run.")] = None,
    alerts: Annotated[
        Literal["all"] | None, Query(description="With `run`: alerts of every run all the same.")
    ] = None,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Streams ``tick``, ``verdict``, ``run`` and ``alert`` events; goes on after ``Last-Event-ID``.
    ``reset``: something may have been missed, read again. ``beat``, at the start and whenever ``every_s``
    seconds brought nothing else: the stream lives. Ends when the token or session that let it in does.
    """
    text = last_event_id or ""
    last_id = int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_ID_DIGITS else None
    stream = services.events.read(run=run, last_id=last_id, all_alerts=alerts is not None)
    allowed = _while_allowed(stream, services.doorkeeper, cast(Admitted, request.state.admitted))
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # nginx would hold events back
    return StreamingResponse(allowed, media_type="text/event-stream", headers=headers)


async def _while_allowed(
    stream: AsyncIterator[str], doorkeeper: Doorkeeper, admitted: Admitted
) -> AsyncIterator[str]:
    async with aclosing(cast(AsyncGenerator[str, None], stream)):
        async for part in stream:
            if not await doorkeeper.still(admitted.grant, admitted.session):
                return
            yield part
