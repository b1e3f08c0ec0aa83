"""Does at once what the server does little by little: deletes what is over its time, removes the deleted."""

from __future__ import annotations

import time
from dataclasses import dataclass

from floatscope_server.callers import COMMAND_LINE
from floatscope_server.database import Database
from floatscope_server.dbtool.opening import CannotDo
from floatscope_server.objects.opening import open_objects
from floatscope_server.objects.sweeper import Sweeper
from floatscope_server.removing import Remover
from floatscope_server.retention import Doomed, Policy, plan
from floatscope_server.settings import Settings
from floatscope_server.store import garbage, kept, removal, runs


@dataclass(frozen=True)
class Purged:
    """doomed: runs deleted by the retention settings. removed: deleted runs whose rows went. objects: deleted
    from the store; None without one.
    """

    doomed: list[Doomed]
    removed: int
    objects: int | None


def purge(database: Database, settings: Settings, *, dry_run: bool) -> Purged:
    """Raises CannotDo if the object store is away; what is left to do there stays noted."""
    objects = open_objects(settings)
    now = time.time()
    with database.read() as c:
        doomed = plan(kept.all_runs(c), Policy.of(settings), now=now)
        waiting = len(removal.waiting(c))
        noted = garbage.due(c, now=now)
    if dry_run:
        return Purged(doomed, waiting + len(doomed), None if objects is None else noted)
    for run in doomed:
        with database.write() as c:
            runs.lock_with_dependents(c, run.run_id)
            found = runs.find(c, run.run_id, lock=True)
            if found is not None and run.is_still(found):
                removal.forget(c, found, by=COMMAND_LINE, why=run.why, now=now)
    removed = Remover(database=database).round()
    if objects is None:
        return Purged(doomed, removed, None)
    try:
        return Purged(doomed, removed, Sweeper(database=database, objects=objects).sweep())
    except OSError as error:
        raise CannotDo(f"{removed} runs are removed; their objects are not: {error}") from error
