"""What a printable report of a run shows, as plain frozen objects: the server fills them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from floatscope_dashboards.views import RunRow


@dataclass(frozen=True)
class AlertLine:
    """One event of an alert's history. by: "engine", or who asked.  note: "" for none."""

    time: datetime
    event: str
    by: str
    before: str
    after: str
    note: str


@dataclass(frozen=True)
class CurveSeries:
    """Column arrays of the REST interface. proof_title: what the lower panel shows, "" without one."""

    loss: Mapping[str, Any]
    baseline: Mapping[str, Any] | None = None
    baseline_name: str = ""
    proof: Mapping[str, Any] | None = None
    proof_title: str = ""
    proof_unit: str = ""


@dataclass(frozen=True)
class ReportView:
    """The report of one run. onset_time: when the onset's step was trained, None if that is not known.
    ranks: that sent something.  curves: None where none could be read.  alerts: newest last.  url: of the
    run's page.
    """

    row: RunRow
    verdict: Mapping[str, Any]
    ranks: int
    onset_time: datetime | None
    curves: CurveSeries | None
    alerts: tuple[AlertLine, ...]
    alerts_left_out: int
    url: str
    version: str
    now: datetime
