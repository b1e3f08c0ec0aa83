"""Projects: they are the names that runs give."""

from __future__ import annotations

from sqlalchemy import Connection, func, select

from floatscope_server import tables

_run = tables.run


def listed(c: Connection, *, limit: int) -> list[str]:
    """Projects of the runs there are, those with the newest runs first."""
    newest = func.max(_run.c.id)
    query = select(_run.c.project).where(_run.c.deleted.is_(None)).group_by(_run.c.project)
    return list(c.execute(query.order_by(newest.desc()).limit(limit)).scalars())


def is_known(c: Connection, project: str) -> bool:
    """Whether a run or a setting of a rule names it."""
    for table in (_run, tables.rule_setting):
        query = select(table.c.project).where(table.c.project == project).limit(1)
        if c.execute(query).first() is not None:
            return True
    return False
