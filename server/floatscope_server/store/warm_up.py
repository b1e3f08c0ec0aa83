"""Runs that are too young to be called healthy, as the database knows them."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import ColumnElement, and_, func, not_, or_

from floatscope_dashboards.warm_up import WARM_UP_STEPS
from floatscope_server import tables

HEALTHY, YOUNG = "healthy", "warming_up"

_run = tables.run.c
WARMING_UP: ColumnElement[bool] = and_(
    _run.status == "running",
    _run.health == HEALTHY,
    _run.cause.is_(None),
    func.coalesce(_run.judged_steps, _run.last_step - _run.first_step + 1, 0) < WARM_UP_STEPS,
)
"""What ``floatscope_dashboards.warm_up.is_warming_up`` says of a run."""


def of_health(wanted: Collection[str]) -> ColumnElement[bool]:
    """Runs of these healths; "healthy" are those that were judged, "warming_up" those that are too young."""
    found: list[ColumnElement[bool]] = [
        _run.health.in_([one for one in wanted if one not in (HEALTHY, YOUNG)])
    ]
    if HEALTHY in wanted:
        found.append(and_(_run.health == HEALTHY, not_(WARMING_UP)))
    if YOUNG in wanted:
        found.append(WARMING_UP)
    return or_(*found)
