"""Real ``floatscope serve`` processes, and connections that stay open to them as those of agents do."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from floatscope.protocol import wire_safetensors
from tests.server.live import TOKEN, Client, Process

START_S = 60.0
KIND = {"Authorization": f"Bearer {TOKEN}", "Content-Type": wire_safetensors.CONTENT_TYPE}
READER = {"Authorization": f"Bearer {TOKEN}", "Accept-Encoding": "identity"}


@dataclass(frozen=True)
class Running:
    """A server that answers."""

    client: Client
    port: int
    pid: int
    data: Path


@dataclass(frozen=True)
class Metered:
    """What ``metered`` noted. shares: CPU seconds by part, without overlaps."""

    total_s: float
    shares: Mapping[str, float]
    compacting: Sequence[tuple[float, float]]
    peak_mb: float


@contextmanager
def server(data: Path, *, meter: Path | None = None, **settings: str) -> Iterator[Running]:
    """``floatscope serve`` in a process of its own, stopped as by SIGTERM at the end."""
    process = Process(data, {"FLOATSCOPE_TOKEN": TOKEN, "FLOATSCOPE_LOG_LEVEL": "warning", **settings})
    if meter is not None:
        process.program = ("-m", "benchmarks.server.metered", str(meter))
    client = process.start(seconds=START_S)
    assert process.process is not None
    try:
        yield Running(client, process.port, process.process.pid, data)
    except BaseException:
        process.kill()
        raise
    process.stop()


def noted(path: Path) -> Metered:
    """Reads what a metered server left when it stopped."""
    found = json.loads(path.read_text())
    spent: dict[str, float] = {"decode": 0.0, "diagnosis": 0.0, "compaction": 0.0, **found["cpu_s"]}
    put = spent.get("put", 0.0)
    inside = sum(spent.get(name, 0.0) for name in ("decode", "diagnosis", "outcome"))
    taken = put + spent.get("digest", 0.0) + spent["compaction"]
    shares = {
        "HTTP, decode": spent["total"] - taken + spent["decode"] + spent.get("digest", 0.0),
        "storage": put - inside,
        "diagnosis": spent["diagnosis"] + spent.get("outcome", 0.0),
        "compaction": spent["compaction"],
    }
    return Metered(spent["total"], shares, [tuple(part) for part in found["compacting"]], found["peak_mb"])


@dataclass
class Lane:
    """One connection that sends the batches of one run, in order. sent: (when it began, s it took)."""

    port: int
    run_id: str
    rank: int = 0
    sent: list[tuple[float, float]] = field(default_factory=list)
    waited: int = 0
    _connection: http.client.HTTPConnection | None = None

    def put(self, seq: int, body: bytes) -> None:
        """Sends until it is taken; a 429 is waited for as the answer says, and counts as one send."""
        path = f"/api/v1/runs/{self.run_id}/ranks/{self.rank}/batches/{seq}"
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        began, clock = time.time(), time.perf_counter()
        while True:
            self._connection.request("PUT", path, body=body, headers=KIND)
            answer = self._connection.getresponse()
            said = answer.read()
            if answer.status != 429:
                break
            self.waited += 1
            time.sleep(float(answer.headers.get("Retry-After", "1")))
        if answer.status != 200:
            raise SystemExit(f"{answer.status}: {said[:300]!r}")
        self.sent.append((began, time.perf_counter() - clock))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


class Reader:
    """A connection that stays open and reads."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def timed(self, path: str) -> tuple[float, bytes]:
        """Seconds until the whole answer was there, and the answer."""
        began = time.perf_counter()
        self._connection.request("GET", path, headers=READER)
        answer = self._connection.getresponse()
        content = answer.read()
        took = time.perf_counter() - began
        if answer.status != 200:
            raise SystemExit(f"{path}: {answer.status}: {content[:300]!r}")
        return took, content

    def json(self, path: str) -> Any:
        return json.loads(self.timed(path)[1])

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_error: object) -> None:
        self._connection.close()


def in_threads(work: Sequence[Callable[[], None]]) -> None:
    """Does all at once; raises what the first that failed raised."""
    faults: list[BaseException] = []

    def one(part: Callable[[], None]) -> None:
        try:
            part()
        except BaseException as error:  # told to the caller below
            faults.append(error)

    threads = [threading.Thread(target=one, args=(part,)) for part in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
