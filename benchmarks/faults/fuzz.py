"""Thousands of requests made to hurt, over every route; the server must go on and never answer 500."""

from __future__ import annotations

import argparse
import http.client
import random
import shutil
import socket
import tempfile
import time
from pathlib import Path

from benchmarks.faults.checks import check_story, check_structure
from benchmarks.faults.memory import peak_mib, rss_mib
from benchmarks.faults.requests import Asked, Fuzz, Route
from benchmarks.faults.senders import Courier, put
from benchmarks.faults.server import served
from benchmarks.faults.story import Story
from benchmarks.faults.tally import Tally
from floatscope_server.database import Database

PAGES = (
    Route("GET", "/", ("project", "status", "q", "cursor")),
    Route("GET", "/runs/{run_id}", ("at", "segment", "rank")),
    Route("GET", "/login", ("next", "failed")),
    Route("POST", "/login"),
    Route("POST", "/logout"),
    Route("GET", "/static/{name}"),
    Route("GET", "/docs"),
    Route("GET", "/openapi.json"),
    Route(
        "GET", "/api/v1/runs/{run_id}/series", ("tensor", "stat", "points", "from", "to", "rank", "segment")
    ),
)
GROWTH_MIB = 500  # more than the server may keep at the end; one unpacked body is 256 MiB while it is read
PEAK_MIB = 1500
EVERY = 50  # requests between two batches of the run that must stay right
WIRE = (
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01",
    b"GET /\r\n\r\n",
    b"PUT / HTTP/9.9\r\nHost: x\r\n\r\n",
    b"POST /api/v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    b"\r\n" * 500,
    b"GET " + b"a" * 70_000,
    b"POST /api/v1/runs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\nabcd",
    b"GET / HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(4000)) + b"\r\n",
    b"GET /\xff\xfe HTTP/1.1\r\nHost: \xff\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
)


def main(args: argparse.Namespace, tally: Tally) -> None:
    """Sends them; ``--only N`` sends one of them again and prints what came back."""
    folder = Path(tempfile.mkdtemp(prefix="floatscope-fuzz-"))
    with served(folder / "data", FLOATSCOPE_REQUESTS_PER_S="100000") as server:
        client = server.start()
        fuzz = Fuzz(client.get("/openapi.json").json, seed=args.seed, more=PAGES)
        assert server.pid is not None
        if args.only is not None:
            asked = fuzz.request(args.only)
            reply = send(server.port, asked)
            print(asked, asked.body, reply)
            return
        before = rss_mib(server.pid)
        control = Story("control-of-the-suite", args.seed, 1, None)
        stream = control.stream(0)
        courier = Courier(server.port, tally, random.Random(args.seed))
        client.open_run(control.run_id, **control.described)
        sent, end = 0, time.monotonic() + args.minutes * 60
        for number in range(args.requests):
            if time.monotonic() > end:
                break
            if number % EVERY == 0:
                put(courier, control, 0, next(stream), tally=tally)
                client.open_run("alpha", **control.described)  # it may have been deleted
                sent += 1
            asked = fuzz.request(number)
            status = send(server.port, asked)
            tally.add(f"answers {status}" if status else "connections closed without an answer")
            retried = status == 503
            tally.holds(status < 500 or retried or status in (501, 505), f"{status} to {asked}")
            tally.add("requests")
            if number % 100 == 50:
                _raw(server.port, WIRE[number // 100 % len(WIRE)])
                tally.add("requests that are not HTTP")
            if not tally.holds(server.alive(), f"the server died after {asked}"):
                return
        courier.close()
        tally.add("routes", len(fuzz.routes))
        tally.holds(client.get("/readyz").status == 200, "the server is not ready afterwards")
        tally.most("resident memory before, MiB", before)
        tally.most("resident memory after, MiB", rss_mib(server.pid))
        tally.most("resident memory, most, MiB", peak_mib(server.pid))
        tally.holds(rss_mib(server.pid) < before + GROWTH_MIB, "the server keeps too much memory")
        tally.holds(peak_mib(server.pid) < PEAK_MIB, "the server took too much memory")
        tally.holds(server.stop() == 0, "the server did not stop with 0")
        log = server.log.read_text(errors="replace")
        tally.holds(
            "Traceback" not in log,
            f"the log holds a traceback: {log[max(log.find('Traceback'), 0) :][:1500]}",
        )
        database = Database(f"sqlite:///{server.data_dir / 'floatscope.db'}")
        check_story(database, control, ended=None, acked={0: sent}, tally=tally)
        check_structure(database, tally=tally)
        database.close()
    if not tally.broken:
        shutil.rmtree(folder)


def send(port: int, asked: Asked) -> int:
    """The status of the answer; 0 if the connection was closed without one."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.putrequest(
            asked.method, asked.path, skip_host="Host" in asked.headers, skip_accept_encoding=True
        )
        for name, value in asked.headers.items():
            connection.putheader(name, value.encode("latin-1"))
        if asked.body is not None:
            connection.putheader("Content-Length", str(len(asked.body)))
        connection.endheaders(asked.body)
        answer = connection.getresponse()
        with answer:  # also one that never ends
            if not answer.getheader("content-type", "").startswith("text/event-stream"):
                answer.read()
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()
    if answer.status == 503 and answer.getheader("retry-after") is None:
        return 599  # an answer that says nothing of when to come again counts as a fault
    return answer.status


def _raw(port: int, content: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.settimeout(0.2)
        try:
            connection.sendall(content)
            connection.recv(4096)
        except OSError:
            return
