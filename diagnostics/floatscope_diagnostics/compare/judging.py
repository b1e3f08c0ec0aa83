"""The findings of a run, for the decision: a file is diagnosed, a server is asked for its verdict."""

from __future__ import annotations

import os

from floatscope.api import Api, ApiError
from floatscope_diagnostics.compare.health import Health, health_of
from floatscope_diagnostics.compare.sources import Reading
from floatscope_diagnostics.engine import Engine
from floatscope_diagnostics.readers.formats import open_runs
from floatscope_diagnostics.readers.run_log import UnreadableLog


def health_by_name(name: str, reading: Reading) -> Health | None:
    """The health of a run by file name or run id, of its whole length; None for standard input, which has
    been read, and where a server has no verdict.
    """
    if name == "-":
        return None
    if reading.ids_only or not os.path.exists(name):
        return _stored(name, reading)
    try:
        with open_runs(name, format_name=reading.format_name) as runs:
            log = next(runs, None)
            if log is None:
                return None
            engine = Engine(log.run)
            for rank, batch in log.batches:
                engine.feed(batch, rank=rank)
            if log.run.status is not None:
                engine.finish(log.run.status, log.run.reason)
            return health_of(engine.verdict().to_json())
    except UnreadableLog:
        return None  # its losses were read, so it is its tail that cannot be judged: not known


def _stored(run_id: str, reading: Reading) -> Health | None:
    if reading.server is None:
        return None
    with Api(reading.server, user_agent="floatscope-compare") as api:
        try:
            return health_of(api.verdict(run_id))
        except ApiError:
            return None
