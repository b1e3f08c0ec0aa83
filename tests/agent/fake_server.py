"""A small server that keeps the agent's contract: seq, repeats, conflicts, gaps, tensor tables, segments.

``FakeServer`` is the memory of a server; ``HttpServer`` puts it behind a real socket. Both can be told to
misbehave.
"""

from __future__ import annotations

import gzip
import http.server
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from floatscope.client import Answer
from floatscope.protocol import wire_json, wire_safetensors
from floatscope.protocol.batch import Batch
from floatscope.protocol.errors import NeedTensors, ProtocolError
from floatscope.protocol.json_rows import rows_from_batch


@dataclass
class Rank:
    """What is stored of one rank: bytes by seq, and the batches they decoded to."""

    bodies: list[bytes] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)


class FakeServer:
    """Stores runs in memory and answers as the real server does."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[str, Any]] = {}
        self.ranks: dict[tuple[str, int], Rank] = {}
        self.tables: dict[str, dict[str, dict[str, Any]]] = {}
        self.finished: list[tuple[str, Any]] = []
        self.statuses: dict[str, str] = {}
        self.settings: dict[str, Any] = {}
        self.token: str | None = None
        self.requests: list[tuple[str, str]] = []

    def request(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """One request, already received in full."""
        self.requests.append((method, path))
        given = {name.lower(): value for name, value in headers.items()}
        if self.token is not None and given.get("authorization") != f"Bearer {self.token}":
            return _problem(401, "no such token")
        if given.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        parts = path.strip("/").split("/")
        if method == "POST" and path == "/api/v1/runs":
            return self._create(json.loads(body))
        if method == "POST" and parts[-1] == "finish":
            if parts[3] not in self.runs:
                return _problem(404, "unknown run")
            self.finished.append((parts[3], json.loads(body)))
            self.statuses[parts[3]] = json.loads(body)["status"]
            return _ok(200, {})
        if method == "GET" and len(parts) == 4 and parts[2] == "runs":
            return self._show(parts[3])
        if method == "PUT":
            return self._put(parts[3], int(parts[5]), int(parts[7]), body, given.get("content-type", ""))
        return _problem(404, "no such address")

    def rank(self, run_id: str, rank: int = 0) -> Rank:
        """The record of one rank."""
        return self.ranks.setdefault((run_id, rank), Rank())

    def rows(self, run_id: str, rank: int = 0) -> list[dict[str, Any]]:
        """All stored steps as log objects, in the order they were stored."""
        return [row for batch in self.rank(run_id, rank).batches for row in rows_from_batch(batch)]

    def forget(self, run_id: str, rank: int, keep: int) -> None:
        """Goes back to a backup that has only the first ``keep`` batches."""
        record = self.rank(run_id, rank)
        del record.bodies[keep:], record.batches[keep:]

    def _show(self, run_id: str) -> Answer:
        if run_id not in self.runs:
            return _problem(404, "unknown run")
        ranks = [
            {"rank": r, "expected_seq": len(record.bodies)}
            for (run, r), record in self.ranks.items()
            if run == run_id
        ]
        return _ok(200, {"run_id": run_id, "status": self.statuses[run_id], "ranks": ranks})

    def _create(self, info: dict[str, Any]) -> Answer:
        run_id = info["run_id"]
        is_new = run_id not in self.runs
        self.statuses[run_id] = "running"
        known = self.runs.setdefault(run_id, {})
        tensors = {**known.get("tensors", {}), **info.get("tensors", {})}
        known.update(info)
        known["tensors"] = tensors
        expected = {str(r): len(record.bodies) for (run, r), record in self.ranks.items() if run == run_id}
        body = {"run_id": run_id, "expected_seq": expected, "segment": {}, "settings": self.settings}
        return _ok(201 if is_new else 200, body)

    def _put(self, run_id: str, rank: int, seq: int, body: bytes, content_type: str) -> Answer:
        if run_id not in self.runs:
            return _problem(404, "unknown run")
        record = self.rank(run_id, rank)
        expected = len(record.bodies)
        if seq < expected:
            if record.bodies[seq] == body:
                return self._stored(expected)
            return _problem(409, "other bytes", reason="conflict", expected_seq=expected)
        if seq > expected:
            return _problem(409, "a gap", reason="gap", expected_seq=expected)
        try:
            if content_type == wire_json.CONTENT_TYPE:
                batch = wire_json.decode(body, rank=rank)
            else:
                batch, table = wire_safetensors.decode(body, find_table=self.tables.get)
                self.tables[wire_safetensors.table_hash(table)] = table
        except NeedTensors as error:
            return _problem(409, str(error), reason="need_tensors", expected_seq=expected)
        except ProtocolError as error:
            return _problem(422, str(error))
        record.bodies.append(body)
        record.batches.append(batch)
        return self._stored(expected + 1)

    def _stored(self, expected: int) -> Answer:
        return _ok(200, {"expected_seq": expected, "segment": 0, "settings": self.settings})


def _ok(status: int, body: dict[str, Any]) -> Answer:
    return Answer(status, body, json.dumps(body))


def _problem(status: int, detail: str, **more: Any) -> Answer:
    body = {"title": "problem", "detail": detail, **more}
    return Answer(status, body, json.dumps(body))


class HttpServer:
    """A FakeServer behind a real socket.

    misbehave: called with the request's handler before it is answered; returns True if it has dealt with the
    request itself (hung, closed the connection, sent garbage).
    """

    def __init__(self, server: FakeServer | None = None) -> None:
        self.server = server or FakeServer()
        self.misbehave: Callable[[http.server.BaseHTTPRequestHandler], bool] = lambda handler: False
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 30

            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                if outer.misbehave(self):
                    return
                with outer.lock:
                    answer = outer.server.request(self.command, self.path, body, dict(self.headers))
                data = json.dumps(answer.body).encode()
                self.send_response(answer.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = _serve

            def log_message(self, *args: object) -> None:
                return None

        class Quiet(http.server.ThreadingHTTPServer):
            def handle_error(self, request: object, client_address: object) -> None:
                return None  # a client that hangs up is what these tests are about

        self.lock = threading.Lock()
        self._http = Quiet(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stops listening."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
