"""Fills the view of the page of precision advice."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection

from floatscope.hardware.gpu_lookup import gpu_models
from floatscope_dashboards.advice_view import AdviceView
from floatscope_diagnostics.advisor.advice import FRAMEWORKS
from floatscope_server import advising
from floatscope_server.errors import Refused
from floatscope_server.services import Services
from floatscope_server.store import runs
from floatscope_server.store.runs import RunRecord
from floatscope_server.views.tensors import tensor_run


def advice_view(c: Connection, services: Services, run: RunRecord, params: Mapping[str, str]) -> AdviceView:
    """The advice for a run, its gap taken to the baseline that it names. params: of the address; framework
    and gpu are used, and said to be left out where they are not known.
    """
    framework, named = params.get("framework"), params.get("gpu", "").strip()
    base = runs.find(c, run.baseline) if run.baseline else None
    base = None if base is not None and base.id == run.id else base
    wanted = next((one for one in FRAMEWORKS if one == framework), None)
    try:
        gpu = advising.gpu_of(named) if named else ""
    except Refused:
        gpu = ""
    found = advising.advised(c, services, run, base, advising.Asked(wanted, gpu=gpu))
    return AdviceView(
        tensor_run(run),
        found.document,
        baseline="" if base is None else base.run_id,
        baseline_name="" if base is None else base.name,
        steps_read=found.read,
        steps_logged=found.logged,
        framework=wanted or "",
        gpu=gpu,
        gpus=tuple(model.name for model in gpu_models() if model.fp8_tflops),
        unknown_gpu=named if named and not gpu else "",
        corrected=("framework",) if framework and wanted is None else (),
    )
