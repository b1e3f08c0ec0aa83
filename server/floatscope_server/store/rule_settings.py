"""What is set for rules: for one project, or for every project that sets nothing of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, delete, select, update

from floatscope.protocol import strict_json
from floatscope_server import tables
from floatscope_server.database import upsert

_table = tables.rule_setting
EVERY = "*"
"""Stands for every project that sets nothing of its own for the rule."""
BEHIND = -2
"""``run.baseline_arrivals`` of a run whose verdict was given under other settings. It is less than any
baseline has sent, so the verdict is made anew, also after a restart; another baseline has its own mark.
"""


@dataclass(frozen=True)
class StoredSetting:
    """What is set for one rule. project: EVERY or a project's name. severity: None as the rule says."""

    project: str
    rule: str
    enabled: bool
    severity: str | None
    thresholds: Mapping[str, float]
    note: str | None
    updated: float
    updated_by: str

    def to_json(self) -> dict[str, Any]:
        """As the engine reads it."""
        return {
            "enabled": self.enabled,
            "severity": self.severity,
            "thresholds": dict(self.thresholds),
        }


def put(c: Connection, setting: StoredSetting) -> None:
    """Stores a setting in place of the one before."""
    values = {
        "enabled": setting.enabled,
        "severity": setting.severity,
        "thresholds_json": strict_json.dumps(dict(sorted(setting.thresholds.items()))),
        "note": setting.note,
        "updated": setting.updated,
        "updated_by": setting.updated_by,
    }
    statement = upsert(c, _table).values(project=setting.project, rule=setting.rule, **values)
    c.execute(statement.on_conflict_do_update(index_elements=["project", "rule"], set_=values))


def remove(c: Connection, *, project: str, rule: str) -> None:
    """The rule is as it was written again."""
    c.execute(delete(_table).where(_table.c.project == project, _table.c.rule == rule))


def find(c: Connection, *, project: str, rule: str, lock: bool = False) -> StoredSetting | None:
    """What is set for exactly this project, or None. lock: other writers of it wait."""
    query = select(_table).where(_table.c.project == project, _table.c.rule == rule)
    row = c.execute(query.with_for_update() if lock else query).first()
    return None if row is None else _record(row)


def listed(c: Connection, *, rule: str | None = None) -> list[StoredSetting]:
    """All settings there are, of one rule or of all; by project and rule."""
    query = select(_table).order_by(_table.c.project, _table.c.rule)
    if rule is not None:
        query = query.where(_table.c.rule == rule)
    return [_record(row) for row in c.execute(query)]


def of_project(c: Connection, project: str) -> dict[str, StoredSetting]:
    """What holds in a project, by rule: its own settings, else those for every project."""
    query = select(_table).where(_table.c.project.in_((EVERY, project)))
    found: dict[str, StoredSetting] = {}
    for setting in (_record(row) for row in c.execute(query)):
        if setting.rule not in found or setting.project != EVERY:
            found[setting.rule] = setting
    return found


def mark_behind(c: Connection, *, project: str, rule: str) -> list[str]:
    """Notes that the verdicts of the runs that go on are behind what is set now; returns these runs' ids.

    For every project: without those that have a setting of their own for the rule.
    """
    run = tables.run
    going_on = run.c.status.in_(("running", "stalled")) & run.c.deleted.is_(None)
    if project == EVERY:
        own = select(_table.c.project).where(_table.c.rule == rule, _table.c.project != EVERY)
        mine = going_on & run.c.project.not_in(own)
    else:
        mine = going_on & (run.c.project == project)
    locked = select(run.c.run_id).where(mine).order_by(run.c.id).with_for_update()  # as all who lock several
    ids = list(c.execute(locked).scalars())
    c.execute(update(run).where(mine).values(baseline_arrivals=BEHIND))
    return ids


def _record(row: Row[Any]) -> StoredSetting:
    values = dict(row._mapping)
    values["thresholds"] = json.loads(values.pop("thresholds_json"))
    return StoredSetting(**values)
