"""Descriptions of runs, remembered: a long tensor table takes longer to read than what is asked about it."""

from __future__ import annotations

import threading
from collections import OrderedDict

from sqlalchemy import Connection

from floatscope.protocol.runinfo import RunInfo
from floatscope_server.store import runs
from floatscope_server.store.runs import RunRecord

REMEMBERED = 64


class Descriptions:
    """The latest descriptions that were read. One is read again only after it changed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of_run: OrderedDict[tuple[int, int], RunInfo] = OrderedDict()

    def get(self, c: Connection, run: RunRecord) -> RunInfo:
        """The run's description, as of the record. Raises Damaged."""
        key = (run.id, run.described)
        with self._lock:
            known = self._of_run.get(key)
            if known is not None:
                self._of_run.move_to_end(key)
                return known
        found = runs.info(c, run.id)
        with self._lock:
            self._of_run[key] = found
            while len(self._of_run) > REMEMBERED:
                self._of_run.popitem(last=False)
        return found
