"""Fills the view of the page of precision advice."""

from __future__ import annotations

from sqlalchemy import Connection

from floatscope_dashboards.advice_view import AdviceView
from floatscope_diagnostics.advisor.advice import FRAMEWORKS
from floatscope_server import advising
from floatscope_server.services import Services
from floatscope_server.store import runs
from floatscope_server.store.runs import RunRecord
from floatscope_server.views.tensors import tensor_run


def advice_view(
    c: Connection, services: Services, run: RunRecord, framework: str | None = None
) -> AdviceView:
    """The advice for a run, its gap taken to the baseline that it names. framework: to choose layers for, as
    the address names it; one that is not known is said to be left out.
    """
    base = runs.find(c, run.baseline) if run.baseline else None
    base = None if base is not None and base.id == run.id else base
    wanted = next((one for one in FRAMEWORKS if one == framework), None)
    found = advising.advised(c, services, run, base, advising.Asked(wanted))
    return AdviceView(
        tensor_run(run),
        found.document,
        baseline="" if base is None else base.run_id,
        baseline_name="" if base is None else base.name,
        steps_read=found.read,
        steps_logged=found.logged,
        corrected=("framework",) if framework and wanted is None else (),
    )
