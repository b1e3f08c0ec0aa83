"""How much room the runs take, as the settings page shows it: cheap to read however much is stored."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from floatscope_server import tables

SHOWN_PROJECTS = 6  # largest first


@dataclass(frozen=True)
class ProjectUse:
    """One project. bytes: of its telemetry as stored."""

    project: str
    runs: int
    bytes: int


def by_project(c: Connection) -> tuple[list[ProjectUse], ProjectUse]:
    """The largest projects, and all of them together (its ``project`` is empty)."""
    run = tables.run.c
    size = func.coalesce(func.sum(run.bytes), 0)
    query = select(run.project, func.count(), size).where(run.deleted.is_(None)).group_by(run.project)
    ordered = query.order_by(size.desc(), run.project).limit(SHOWN_PROJECTS)
    largest = [ProjectUse(project, int(count), int(stored)) for project, count, stored in c.execute(ordered)]
    whole = c.execute(select(func.count(), size).where(run.deleted.is_(None))).one()
    return largest, ProjectUse("", int(whole[0]), int(whole[1]))
