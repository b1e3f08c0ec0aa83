"""Clients that are slow on purpose: hundreds of connections that never finish; everybody else is served."""

from __future__ import annotations

import argparse
import random
import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.faults.checks import check_story, check_structure
from benchmarks.faults.memory import descriptors, peak_mib, rss_mib
from benchmarks.faults.senders import Courier, put
from benchmarks.faults.server import Server, served
from benchmarks.faults.story import Sent, Story
from benchmarks.faults.tally import Tally
from floatscope_server.database import Database
from tests.server.live import TOKEN

DRIP_S = 0.5  # one byte on each slow connection so often
GONE_S = 150.0  # after this time none of the slow ones may be open any more
GROWTH_MIB = 400
ALLOWED = f"Authorization: Bearer {TOKEN}\r\n".encode()


def main(args: argparse.Namespace, tally: Tally) -> None:
    """Measures batches before, among and after ``--connections`` slow connections of each kind."""
    folder = Path(tempfile.mkdtemp(prefix="floatscope-loris-"))
    with served(folder / "data") as server:
        client = server.start()
        story = Story("quick", args.seed, 1, None, rows=64)
        client.open_run(story.run_id, **story.described)
        stream = story.stream(0)
        courier = Courier(server.port, tally, random.Random(args.seed))
        assert server.pid is not None
        sent = _measure("before", courier, story, stream, args.batches, tally)
        before = rss_mib(server.pid)
        slow = Slow(server, args.connections, random.Random(args.seed))
        tally.add("slow connections", len(slow.sockets))
        sent += _measure("among slow clients", courier, story, stream, args.batches, tally, slow)
        _report_memory(server, before, tally)
        if args.wait:
            began = time.monotonic()
            left = slow.wait_until_closed(min(GONE_S, args.minutes * 60))
            tally.add("seconds until the server had closed the slow ones", round(time.monotonic() - began))
            tally.holds(left == 0, f"{left} of {slow.unfinished} unfinished requests are still held open")
        slow.close()
        sent += _measure("after", courier, story, stream, args.batches, tally)
        courier.close()
        time.sleep(1)
        tally.holds(
            descriptors(server.pid) < 100, f"{descriptors(server.pid)} descriptors are open at the end"
        )
        tally.holds(server.stop() == 0, "the server did not stop with 0")
        database = Database(f"sqlite:///{server.data_dir / 'floatscope.db'}")
        check_story(database, story, ended=None, acked={0: sent}, tally=tally)
        check_structure(database, tally=tally)
        database.close()
    if not tally.broken:
        shutil.rmtree(folder)


class Slow:
    """Connections that send a byte now and then, or read nothing. unfinished: that never end a request."""

    def __init__(self, server: Server, count: int, rng: random.Random) -> None:
        self._rng = rng
        self._pid = server.pid
        address = ("127.0.0.1", server.port)
        self.dripping = [
            _opened(address, b"GET /api/v1/runs HTTP/1.1\r\nHost: x\r\nX-Slow: ") for _ in range(count)
        ]
        length = b"Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n{"
        head = b"PUT /api/v1/runs/quick/ranks/0/batches/0 HTTP/1.1\r\nHost: x\r\n" + ALLOWED + length
        self.dripping += [_opened(address, head) for _ in range(count)]
        self.silent = [_opened(address, b"") for _ in range(count)]
        self.silent += [_opened(address, b"GET / HTTP/1.1\r\nHost: x\r\n") for _ in range(count)]
        # readers that read nothing: live events, and exports that do not fit into the socket's buffer
        events = b"GET /api/v1/events HTTP/1.1\r\nHost: x\r\n" + ALLOWED + b"\r\n"
        export = b"GET /api/v1/runs/quick/steps HTTP/1.1\r\nHost: x\r\n" + ALLOWED + b"\r\n"
        self.reading = [_opened(address, events, buffer=4096) for _ in range(count // 4)]
        self.reading += [_opened(address, export, buffer=4096) for _ in range(count // 10)]

    @property
    def sockets(self) -> list[socket.socket]:
        return [*self.dripping, *self.silent, *self.reading]

    @property
    def unfinished(self) -> int:
        return len(self.dripping) + len(self.silent)

    def drip(self) -> None:
        """One byte more on each."""
        for connection in self.dripping:
            try:
                connection.send(b"a")
            except OSError:  # the server has closed it
                continue

    def wait_until_closed(self, seconds: float) -> int:
        """How many of the unfinished ones are still open after so long, however they drip."""
        end = time.monotonic() + seconds
        left = [*self.dripping, *self.silent]
        while left and time.monotonic() < end:
            self.drip()
            time.sleep(DRIP_S)
            left = [connection for connection in left if not _is_closed(connection)]
        return len(left)

    def close(self) -> None:
        for connection in self.sockets:
            connection.close()


def _measure(
    when: str,
    courier: Courier,
    story: Story,
    stream: Iterator[Sent],
    batches: int,
    tally: Tally,
    slow: Slow | None = None,
) -> int:
    times = []
    dripped = 0.0
    for _ in range(batches):
        if slow is not None and time.monotonic() - dripped > DRIP_S:
            dripped = time.monotonic()
            slow.drip()
        began = time.perf_counter()
        put(courier, story, 0, next(stream), tally=tally)
        times.append(1e3 * (time.perf_counter() - began))
    cut = statistics.quantiles(times, n=100)
    print(
        f"  a batch {when}: median {cut[49]:.1f} ms, p99 {cut[98]:.1f} ms, most {max(times):.1f} ms",
        flush=True,
    )
    return batches


def _report_memory(server: Server, before: int, tally: Tally) -> None:
    assert server.pid is not None
    tally.most("resident memory before, MiB", before)
    tally.most("resident memory, most, MiB", peak_mib(server.pid))
    tally.most("descriptors among slow clients", descriptors(server.pid))
    tally.holds(peak_mib(server.pid) < before + GROWTH_MIB, "slow clients cost too much memory")


def _opened(address: tuple[str, int], content: bytes, *, buffer: int | None = None) -> socket.socket:
    connection = socket.socket()
    if buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    connection.settimeout(10)
    connection.connect(address)
    connection.sendall(content)
    connection.setblocking(False)
    return connection


def _is_closed(connection: socket.socket) -> bool:
    try:
        while True:
            if not connection.recv(65_536):
                return True
    except BlockingIOError:
        return False
    except OSError:
        return True
