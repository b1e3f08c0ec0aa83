"""Says that this worker is there, and clears away those that are not.

A worker that died has freed its locks already. One that stands still (paused, swapped out, a frozen
machine) has not: after a while another closes its connections for it. Its locks are free then, what it was
about to commit is undone, and when it wakes up it finds its connections closed and begins anew.
"""

from __future__ import annotations

import logging
import threading

from floatscope_server.store import workers
from floatscope_server.workers.owners import Owners
from floatscope_server.workers.session import LockSession, Unreachable

BEAT_S = 2.0
SILENT_S = 20.0  # not heard of for so long: it stands still

_log = logging.getLogger(__name__)


class Roster:
    """One thread that beats. ``name``: what this worker's connections are called in the database."""

    def __init__(
        self,
        session: LockSession,
        *,
        name: str,
        url: str,
        owners: Owners | None,
        beat_s: float = BEAT_S,
        silent_s: float = SILENT_S,
    ) -> None:
        self._session = session
        self._name = name
        self._url = url
        self._owners = owners
        self._beat_s = beat_s
        self._silent_s = silent_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="floatscope-roster", daemon=True)

    def start(self) -> None:
        self.beat()
        self._thread.start()

    def stop(self, *, timeout: float = 5.0) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout)
        try:
            with self._session.asked() as c:
                workers.gone(c, self._name)
        except Unreachable:
            _log.info("this worker could not sign off; the others will notice")

    def beat(self) -> None:
        """One round: signs in, clears away who stands still, releases idle runs."""
        try:
            with self._session.asked() as c:
                workers.seen(c, self._name, url=self._url)
                for other in workers.silent(c, longer_than_s=self._silent_s):
                    closed = workers.cut_off(c, other)
                    if closed:
                        _log.warning("worker %s stands still: closed its %d connections", other, closed)
        except Unreachable as error:
            _log.warning("this worker cannot sign in: %s", error)
        if self._owners is not None:
            self._owners.release_idle()

    def _run(self) -> None:
        while not self._stop.wait(self._beat_s):
            self.beat()
