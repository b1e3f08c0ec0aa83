"""Silences: which alerts people do not want to hear of, and for how long. One that ended stays on record."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, fields

from sqlalchemy import Connection, func, insert, or_, select, update

from floatscope_server import tables
from floatscope_server.errors import SilenceNotFound

_silence = tables.silence


@dataclass(frozen=True)
class Silence:
    """A silence. run_id, project, family, cause: None for whatever it is. starts, ends: Unix seconds; no end:
    until somebody ends it. critical: whether it holds critical alerts back as well.
    """

    id: str
    run_id: str | None
    project: str | None
    family: str | None
    cause: str | None
    starts: float
    ends: float | None
    critical: bool
    note: str
    created: float
    created_by: str
    ended_by: str | None = None
    number: int = 0

    def state(self, now: float) -> str:
        """waiting, active or ended."""
        if self.ends is not None and self.ends <= now:
            return "ended"
        return "waiting" if now < self.starts else "active"

    def covers(self, *, run_id: str, project: str, family: str, cause: str, severity: str) -> bool:
        """Whether such an alert is meant."""
        if severity == "critical" and not self.critical:
            return False
        pairs = (
            (self.run_id, run_id),
            (self.project, project),
            (self.family, family),
            (self.cause, cause),
        )
        return all(wanted in (None, has) for wanted, has in pairs)


_COLUMNS = [_silence.c[field.name] for field in fields(Silence)]


def add(c: Connection, silence: Silence) -> Silence:
    """Stores a new silence and returns it with its number."""
    values = {name: value for name, value in asdict(silence).items() if name != "number"}
    c.execute(insert(_silence).values(**values))
    return get(c, silence.id)


def get(c: Connection, silence_id: str) -> Silence:
    """The silence; raises SilenceNotFound."""
    row = c.execute(select(*_COLUMNS).where(_silence.c.id == silence_id)).first()
    if row is None:
        raise SilenceNotFound(silence_id)
    return Silence(**row._mapping)


def of_ids(c: Connection, silence_ids: Collection[str]) -> dict[str, Silence]:
    """Silences by their ids; asks nothing if there are none."""
    if not silence_ids:
        return {}
    query = select(*_COLUMNS).where(_silence.c.id.in_(silence_ids))
    return {row.id: Silence(**row._mapping) for row in c.execute(query)}


def listed(
    c: Connection, *, now: float, state: str | None = None, before: int | None = None, limit: int
) -> list[Silence]:
    """Silences, newest first; ``state``: only those that are waiting, active or ended."""
    query = select(*_COLUMNS).order_by(_silence.c.number.desc()).limit(limit)
    goes_on = or_(_silence.c.ends.is_(None), _silence.c.ends > now)
    if state == "ended":
        query = query.where(_silence.c.ends <= now)
    elif state is not None:
        started = _silence.c.starts <= now if state == "active" else _silence.c.starts > now
        query = query.where(goes_on, started)
    if before is not None:
        query = query.where(_silence.c.number < before)
    return [Silence(**row._mapping) for row in c.execute(query)]


def active(c: Connection, *, now: float) -> list[Silence]:
    """Silences that hold now, oldest first."""
    goes_on = or_(_silence.c.ends.is_(None), _silence.c.ends > now)
    query = select(*_COLUMNS).where(goes_on, _silence.c.starts <= now).order_by(_silence.c.number)
    return [Silence(**row._mapping) for row in c.execute(query)]


def held_back(c: Connection, silence_ids: Collection[str]) -> dict[str, int]:
    """How many alerts each silence holds back now; asks nothing if there are none."""
    if not silence_ids:
        return {}
    alert = tables.alert
    query = select(alert.c.silence, func.count()).where(
        alert.c.state == "silenced", alert.c.silence.in_(silence_ids)
    )
    return {str(row[0]): int(row[1]) for row in c.execute(query.group_by(alert.c.silence))}


def not_ended(c: Connection, *, now: float) -> int:
    """How many silences hold now or will."""
    goes_on = or_(_silence.c.ends.is_(None), _silence.c.ends > now)
    return int(c.execute(select(func.count()).select_from(_silence).where(goes_on)).scalar_one())


def end(c: Connection, silence_id: str, *, by: str, now: float) -> bool:
    """Ends a silence before its time; False if it had ended already."""
    goes_on = or_(_silence.c.ends.is_(None), _silence.c.ends > now)
    ended = update(_silence).where(_silence.c.id == silence_id, goes_on).values(ends=now, ended_by=by)
    return c.execute(ended.returning(_silence.c.id)).first() is not None


def next_change(c: Connection, *, now: float) -> float | None:
    """When the next silence begins or ends."""
    begins = select(func.min(_silence.c.starts)).where(_silence.c.starts > now)
    ends = select(func.min(_silence.c.ends)).where(_silence.c.ends > now)
    found = [c.execute(query).scalar() for query in (begins, ends)]
    return min((moment for moment in found if moment is not None), default=None)
