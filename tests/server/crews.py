"""Several server processes on one PostgreSQL database, as on several machines, and agents that send to any of
them.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from tests.server import postgres
from tests.server.live import Answer, Client, Process, in_own_process
from tests.server.samples import body

GIVE_UP_S = 30.0
_numbers = itertools.count()


@dataclass
class Crew:
    """Servers of one worker each. ``url``: the database they share."""

    url: str
    processes: list[Process]

    def start(self) -> list[Client]:
        """Starts them all; each gets a port of its own."""
        with ThreadPoolExecutor(len(self.processes)) as pool:
            return list(pool.map(Process.start, self.processes))

    def brought_back(self, run_id: str) -> int:
        """How often an engine of the run was made from what is stored, on any of them."""
        said = f"the diagnosis of run {run_id} was brought back"
        return sum(process.log.read_text().count(said) for process in self.processes)

    def said(self, pattern: str) -> int:
        """How many lines of their logs match."""
        return sum(len(re.findall(pattern, process.log.read_text())) for process in self.processes)

    def ask(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Rows of a query on the database."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(query, values).fetchall()

    def cut_lock_connections(self) -> int:
        """Makes the database close every connection that holds an advisory lock."""
        query = (
            "select count(pg_terminate_backend(pid)) from pg_stat_activity "
            "where datname = current_database() and pid <> pg_backend_pid() "
            "and pid in (select pid from pg_locks where locktype = 'advisory')"
        )
        return int(self.ask(query)[0][0])


@contextmanager
def crew(folder: Path, postgres_url: str, count: int, **environment: str) -> Iterator[Crew]:
    """``count`` server processes, not started yet; they are killed at the end if they still run."""
    url = postgres.new_database(postgres_url, f"crew_{next(_numbers)}")
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                in_own_process(folder / f"server-{n}", FLOATSCOPE_DATABASE_URL=url, **environment)
            )
            for n in range(count)
        ]
        yield Crew(url, processes)


def put(clients: Sequence[Client], run_id: str, seq: int, content: bytes, *, rank: int = 0) -> Answer:
    """Sends a batch as an agent does: the same bytes again, to the next server, until one has them."""
    end = time.monotonic() + GIVE_UP_S
    for client in itertools.cycle(clients):
        try:
            answer = client.put(run_id, seq, content, rank=rank)
        except OSError:  # dead, or killed under our hands
            answer = None
        if answer is not None and answer.status != 503:
            return answer
        assert time.monotonic() < end, "no server takes the batch"
        time.sleep(0.05)
    raise AssertionError("there must be a server")


def batches(steps: Sequence[Mapping[str, Any]], *, size: int, rank: int = 0) -> list[bytes]:
    """The bodies in which a rank sends its steps."""
    own = [{**step, "rank": rank} for step in steps]
    return [body(own[at : at + size]) for at in range(0, len(own), size)]
