"""Whether the server lives, and whether it can work. Open to everybody, so they say nothing else."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from floatscope_server.answers import Json
from floatscope_server.services import Use

router = APIRouter(tags=["health"])


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz", response_class=Json)
async def healthz(services: Use) -> Response:
    """The process answers."""
    return Json({"status": "ok", "version": services.version})


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", response_class=Json)
def readyz(services: Use) -> Response:
    """The database answers with the right schema, there is room, what works in the background does, and the
    server is not stopping.
    """
    problems = services.readiness.problems()
    return Json(
        {"status": "not ready" if problems else "ready", "problems": problems},
        status_code=503 if problems else 200,
    )
