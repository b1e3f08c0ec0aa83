"""What the page of precision advice shows, as a plain frozen object: the server fills it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from floatscope_dashboards.tensor_view import TensorRun


@dataclass(frozen=True)
class AdviceView:
    """document: ``floatscope.advice/1``.  baseline: run id of the run it was measured against, "" for none;
    baseline_name: as people write it.  steps_read, steps_logged: steps with tensor statistics that were
    looked at, and that there are.  framework, gpu: what the address asks for, "" for none.  gpus: to choose
    from.  unknown_gpu: a name of the address that is in no table.  corrected: parts of the address that could
    not be used.
    """

    run: TensorRun
    document: Mapping[str, Any]
    baseline: str = ""
    baseline_name: str = ""
    steps_read: int = 0
    steps_logged: int = 0
    framework: str = ""
    gpu: str = ""
    gpus: tuple[str, ...] = ()
    unknown_gpu: str = ""
    corrected: tuple[str, ...] = ()
