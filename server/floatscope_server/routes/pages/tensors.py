"""The tensors of a run: all of them, and one."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import HTMLResponse, Response

from floatscope_dashboards.no_tensor_page import no_tensor_page
from floatscope_dashboards.tensor_page import tensor_page
from floatscope_dashboards.tensors_page import tensors_page
from floatscope_server.callers import By, Caller
from floatscope_server.routes.fields import RunId
from floatscope_server.routes.runs import told
from floatscope_server.services import Services, Use
from floatscope_server.store import runs, verdicts
from floatscope_server.views.shell import shell_of
from floatscope_server.views.tensor import NoSuchTensor, tensor_view
from floatscope_server.views.tensor_asked import asked_of, tensors_asked
from floatscope_server.views.tensors import tensors_view

router = APIRouter(include_in_schema=False)


@router.get("/runs/{run_id}/tensors")
def show_tensors(request: Request, run_id: RunId, services: Use, by: By) -> Response:
    """The table of all tensors, or one tensor whose name cannot be in a path."""
    named = request.query_params.get("tensor")
    if named is not None:
        return _one(request, run_id, named, services, by)
    asked = tensors_asked(request.query_params)
    with services.database.read() as c:
        shell = shell_of(c, request, services, by)
        run = runs.get(c, run_id)
        verdict = told(run, verdicts.find(c, run.id) or {})
        view = tensors_view(c, run, asked, services, verdict=verdict)
    return HTMLResponse(services.pages.show(tensors_page(view, shell.say), shell))


@router.get("/runs/{run_id}/tensors/{tensor:path}")
def show_tensor(
    request: Request, run_id: RunId, tensor: Annotated[str, Path(max_length=4096)], services: Use, by: By
) -> Response:
    """One tensor."""
    return _one(request, run_id, tensor, services, by)


def _one(request: Request, run_id: str, tensor: str, services: Services, by: Caller) -> Response:
    at, rank = asked_of(request.query_params)
    with services.database.read() as c:
        shell = shell_of(c, request, services, by)
        run = runs.get(c, run_id)
        verdict = told(run, verdicts.find(c, run.id) or {})
        found = tensor_view(c, run, tensor, at=at, rank=rank, verdict=verdict, services=services)
    if isinstance(found, NoSuchTensor):
        page = no_tensor_page(found.run.run_id, found.name, found.near, found.total, shell.say)
        return HTMLResponse(services.pages.show(page, shell), status_code=404)
    return HTMLResponse(services.pages.show(tensor_page(found, shell.say), shell))
