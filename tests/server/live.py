"""A real server in this process or in one of its own, and a client that speaks plain HTTP to it."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from floatscope_server.app import create_app
from floatscope_server.serving import GracefulServer
from floatscope_server.settings import Settings

TOKEN = "token-for-tests-0123456789"
START_S = 30.0
Mutate = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def text(self) -> str:
        return self.content.decode()


@dataclass
class Client:
    """Sends requests to one server. ``token``: sent as Bearer unless None."""

    port: int
    token: str | None = TOKEN
    host: str = "127.0.0.1"

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = 30.0,
    ) -> Answer:
        """One request; an object goes as JSON, bytes as they are."""
        sent = dict(headers or {})
        if self.token is not None:
            sent.setdefault("Authorization", f"Bearer {self.token}")
        if body is not None:
            sent.setdefault("Content-Type", "application/json")
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            connection.request(method, path, body=data, headers=sent)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        names = {name.lower(): value for name, value in answer.getheaders()}
        if names.get("content-encoding") == "gzip":
            content = gzip.decompress(content)
        return Answer(answer.status, names, content)

    def get(self, path: str) -> Answer:
        return self.call("GET", path)

    def open_run(self, run_id: str, **fields: Any) -> Answer:
        return self.call("POST", "/api/v1/runs", {"run_id": run_id, **fields})

    def put(
        self,
        run_id: str,
        seq: int,
        body: object,
        *,
        rank: int = 0,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        path = f"/api/v1/runs/{run_id}/ranks/{rank}/batches/{seq}"
        return self.call("PUT", path, body, headers=headers)

    def steps(self, run_id: str, query: str = "") -> list[dict[str, Any]]:
        """The exported steps, without the line that describes the run."""
        answer = self.get(f"/api/v1/runs/{run_id}/steps{query}")
        assert answer.status == 200, answer.text
        rows = [json.loads(line) for line in answer.text.splitlines()]
        assert "run" in rows[0]
        return rows[1:]


@contextmanager
def in_process(settings: Settings, **parts: Any) -> Iterator[Client]:
    """A server in a thread of this process; ``parts`` go to ``create_app``."""
    server = GracefulServer(create_app(settings, **parts))
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        wait_for(lambda: server.started, seconds=START_S)
        yield Client(listener.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(START_S)
        listener.close()


@dataclass
class Process:
    """``floatscope serve`` in a process of its own, that can be killed and started again on the same data."""

    data_dir: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: Sequence[str] = ()
    port: int = 0
    process: subprocess.Popen[bytes] | None = None
    program: Sequence[str] = ("-m", "floatscope.cli", "serve")

    def start(self, *, seconds: float = START_S) -> Client:
        """Starts it and waits until it answers."""
        self.port = self.port or free_port()
        clean = {k: v for k, v in os.environ.items() if not k.startswith("FLOATSCOPE_")}
        command = [sys.executable, *self.program, "--port", str(self.port)]
        command += ["--data-dir", str(self.data_dir), *self.arguments]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, env={**clean, **self.environment}, stdout=log, stderr=log, start_new_session=True
            )
        client = Client(self.port)
        wait_for(lambda: self._answers(client), seconds=seconds)
        return client

    def stop(self, how: int = signal.SIGTERM) -> int:
        """Stops it and returns its exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(timeout=30)

    def kill(self) -> None:
        """kill -9: nothing gets a chance to be tidied up."""
        self.stop(signal.SIGKILL)

    @property
    def log(self) -> Path:
        return self.data_dir.with_suffix(".log")

    def _answers(self, client: Client) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"serve ended: {self.log.read_text()}")
        try:
            return client.get("/healthz").status == 200
        except OSError:
            return False


@contextmanager
def in_own_process(data_dir: Path, **environment: str) -> Iterator[Process]:
    """A server process that is stopped at the end, whatever happened."""
    process = Process(data_dir, {"FLOATSCOPE_TOKEN": TOKEN, **environment})
    try:
        yield process
    finally:
        if process.process is not None and process.process.poll() is None:
            process.kill()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def wait_for(condition: Callable[[], bool], *, seconds: float = 30.0) -> None:
    """Waits until the condition holds; AssertionError if it does not in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)
