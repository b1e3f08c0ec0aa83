"""The server's own figures, for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import PlainTextResponse, Response

from floatscope_server.services import Use

router = APIRouter(tags=["health"])


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(services: Use) -> Response:
    """Figures of the worker that answers, with its number as the label ``worker``; those of the database
    have no such label.
    """
    return Response(services.measures.exposition(), media_type=CONTENT_TYPE_LATEST)
