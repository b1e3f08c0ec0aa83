"""What ties a worker to the others on the same database, in one place. On SQLite there are no others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from floatscope_server.database import Database
from floatscope_server.workers.bus import Bus
from floatscope_server.workers.changes import TOPIC, Changes
from floatscope_server.workers.duties import AllDuties, Duties, SharedDuties
from floatscope_server.workers.owners import Owners
from floatscope_server.workers.roster import Roster
from floatscope_server.workers.session import LockSession

EVENT = "event"


class Hub(Protocol):
    """What the crew needs of ``events.Events``."""

    def relay_by(self, relay: Any) -> None: ...
    def arrived(self, body: Mapping[str, Any]) -> None: ...
    def missed(self) -> None: ...


@dataclass(frozen=True)
class Inside:
    """Where other workers reach this one: ``url`` as they call it, ``port`` it listens on here."""

    url: str
    port: int


class Crew:
    """This worker among others.

    ``duties``: work that one does for all. ``changes``: news of what others remember. ``owners``: who
    serves which run; None where every request is served where it arrives (SQLite, or a worker that others
    cannot reach).
    """

    def __init__(self, database: Database, events: Hub, *, inside: Inside | None) -> None:
        self.name = database.name
        self.inside = inside
        self.changes = Changes()
        self.duties: Duties = AllDuties()
        self.owners: Owners | None = None
        self._parts: tuple[LockSession, Roster, Bus] | None = None
        if database.dialect != "postgresql":
            return
        session = LockSession(database)
        self.duties = SharedDuties(session)
        if inside is not None:
            self.owners = Owners(session)
        roster = Roster(session, name=self.name, url="" if inside is None else inside.url, owners=self.owners)
        bus = Bus(database)
        bus.hear(TOPIC, self.changes.arrived)
        bus.hear(EVENT, events.arrived)
        bus.on_gap(self.changes.missed)
        bus.on_gap(events.missed)
        self.changes.relay_by(bus.tell)
        events.relay_by(lambda body, key: bus.tell(EVENT, body, key))
        self._parts = (session, roster, bus)

    def start(self) -> None:
        """Signs in. A database that is away does not keep the server from starting."""
        if self._parts is not None:
            _session, roster, bus = self._parts
            roster.start()
            bus.start()

    def leave(self) -> None:
        """Lets others take over at once what this worker serves, while it finishes what it is at."""
        if self.owners is not None:
            self.owners.leave()

    def stop(self) -> None:
        """Signs off; duties and locks are free afterwards."""
        if self._parts is not None:
            session, roster, bus = self._parts
            bus.stop()
            roster.stop()
            session.close()
