"""One run."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import HTMLResponse, Response

from floatscope.protocol.names import MAX_STEP
from floatscope_dashboards.run_page import run_page
from floatscope_dashboards.say import Say
from floatscope_server.callers import By
from floatscope_server.routes.fields import RunId
from floatscope_server.routes.runs import told
from floatscope_server.services import Use
from floatscope_server.store import runs, verdicts
from floatscope_server.store.runs import RunRecord
from floatscope_server.views.run import run_view
from floatscope_server.views.shell import shell_of

router = APIRouter(include_in_schema=False)


@router.get("/runs/{run_id}")
def show_run(
    request: Request,
    run_id: RunId,
    services: Use,
    by: By,
    at: Annotated[str | None, Query()] = None,
) -> Response:
    """One run."""
    with services.database.read() as c:
        shell = shell_of(c, request, services, by)
        run = runs.get(c, run_id)
        verdict = told(run, verdicts.find(c, run.id) or {})
        view = run_view(
            c,
            run,
            at=_step(at),
            info=services.descriptions.get(c, run),
            tables=services.tensor_tables,
            verdict=verdict,
            version=services.version,
            say=shell.say,
            by=by,
            rules={code: text.title for code, text in services.rule_book.texts.items()},
            objects=services.objects,
            warm=services.warm,
        )
    corrections = _corrections(at, run, shell.say)
    return HTMLResponse(services.pages.show(run_page(view, shell.say, corrections=corrections), shell))


def _step(text: str | None) -> int | None:
    """The step of an address; what is none is as if it were not there."""
    if text is None or not (text.isascii() and text.isdigit()):
        return None
    return step if (step := int(text[:20])) <= MAX_STEP else None


def _corrections(at: str | None, run: RunRecord, say: Say) -> tuple[str, ...]:
    """What of the address was put right, in whole sentences."""
    if not at:
        return ()
    step = _step(at)
    if step is None:
        return (say("The address asks for a step that is not a whole number, so no step is chosen."),)
    if run.last_step is not None and step > run.last_step:
        return (
            say(
                "The address asks for step {step}, which has not come yet. The last step is {last}.",
                step=say.step(step),
                last=say.step(run.last_step),
            ),
        )
    return ()
