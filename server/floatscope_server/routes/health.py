"""Whether the server lives, and whether it can work. Open to everybody, so they say nothing else."""

from __future__ import annotations

from fastapi import APIRouter
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import Response

from floatscope_server.answers import Json
from floatscope_server.services import Use

router = APIRouter(tags=["health"])


@router.get("/healthz", response_class=Json)
async def healthz(services: Use) -> Response:
    """The process answers."""
    return Json({"status": "ok", "version": services.version})


@router.get("/readyz", response_class=Json)
def readyz(services: Use) -> Response:
    """The database answers and messages are being sent."""
    problems = []
    try:
        services.database.ping()
    except SQLAlchemyError as error:
        problems.append(f"the database does not answer ({type(error).__name__})")
    if not services.sender.alive():
        problems.append("messages are not being sent")
    if not services.telling.alive():
        problems.append("alerts are not being told at their time")
    return Json(
        {"status": "not ready" if problems else "ready", "problems": problems},
        status_code=503 if problems else 200,
    )
