"""What others do with the same kind of numbers: MLflow's server and trackio's, started here, over HTTP.

They are not installed with floatscope. ``--peers PYTHON`` names the interpreter of an environment that has
them; without it they are left out, and the output says so.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from benchmarks.server import machine
from tests.server.live import free_port

START_S = 300.0
TRIES = 4
ENTRIES = 1_000  # of a request: the most that MLflow takes
KEYS = 100  # metrics of a step
TRACKIO_TOKEN = "token-for-benchmarks"
TRACKIO_SERVER = (
    "import sys, uvicorn; from trackio.server import build_starlette_app_only as build; "
    "uvicorn.run(build()[0], port=int(sys.argv[1]), log_level='warning')"
)


@dataclass(frozen=True)
class Rate:
    """what: whom, and how it was fed.  cpu_points: points a second of the server's CPU time."""

    what: str
    a_second: float
    cpu_points: float


@dataclass(frozen=True)
class Read:
    """what: whom, and what was read.  took_s: the times it took."""

    what: str
    points: int
    took_s: list[float]


@dataclass
class Other:
    """A server of somebody else that runs."""

    port: int
    pid: int
    headers: Mapping[str, str]

    def call(self, method: str, path: str, sent: object = None) -> Any:
        """One request over a new connection each time, as long as it takes."""
        return json.loads(self.raw(method, path, sent))

    def raw(self, method: str, path: str, sent: object = None) -> bytes:
        """As ``call``; tried again where the server dropped the connection, as MLflow's does under load."""
        for _ in range(TRIES - 1):
            try:
                return self._once(method, path, sent)
            except http.client.RemoteDisconnected:
                continue
        return self._once(method, path, sent)

    def _once(self, method: str, path: str, sent: object) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            text = None if sent is None else json.dumps(sent)
            connection.request(method, path, body=text, headers=self.headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise SystemExit(f"{path}: {answer.status}: {content[:300]!r}")
        return content


def rates(python: str | None, *, points: int) -> list[Rate]:
    """Points a second of each that is installed."""
    if not _said_where(python):
        return []
    assert python is not None
    found = []
    with mlflow(python) as other:
        run = _mlflow_run(other)
        found.append(
            _rate("MLflow server, SQLite, log-batch of 1,000", other, points, _mlflow_sender(other, run))
        )
    with trackio(python) as other:
        found.append(_rate("trackio server, bulk_log of 1,000", other, points, _trackio_sender(other)))
    return found


def reads(python: str | None, *, points: int, times: int) -> list[Read]:
    """Reads one series of so many points from each."""
    if not _said_where(python):
        return []
    assert python is not None
    found = []
    with mlflow(python) as other:
        run = _mlflow_run(other)
        for first in range(0, points, ENTRIES):
            rows = [_metric("loss", n) for n in range(first, min(first + ENTRIES, points))]
            other.call("POST", "/api/2.0/mlflow/runs/log-batch", {"run_id": run, "metrics": rows})
        path = f"/api/2.0/mlflow/metrics/get-history?run_id={run}&metric_key=loss&max_results=25000"
        took = [_timed(lambda: _pages(other, path, points)) for _ in range(times)]
        found.append(Read("MLflow server, get-history in pages of 25,000", points, took))
    with trackio(python) as other:
        for first in range(0, points, ENTRIES):
            logs = [_logged({"loss": 1 / (n + 1)}, n) for n in range(first, min(first + ENTRIES, points))]
            other.call("POST", "/api/bulk_log", {"logs": logs, "hf_token": None})
        asked = {"project": "bench", "run": "run", "metric_name": "loss"}
        took = [_timed(lambda: other.raw("POST", "/api/get_metric_values", asked)) for _ in range(times)]
        found.append(Read("trackio server, get_metric_values", points, took))
    return found


@contextmanager
def mlflow(python: str) -> Iterator[Other]:
    """``mlflow server`` on SQLite with its defaults."""
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        store = f"sqlite:///{folder}/mlflow.db"
        words = ["-m", "mlflow", "server", "--backend-store-uri", store, "--port", str(port)]
        words += ["--artifacts-destination", f"{folder}/artifacts"]
        with _process([python, *words], folder, port, "/health") as other:
            yield other


@contextmanager
def trackio(python: str) -> Iterator[Other]:
    """trackio's own server, which writes to SQLite."""
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        with _process([python, "-c", TRACKIO_SERVER, str(port)], folder, port, "/version") as other:
            yield other


@contextmanager
def _process(command: list[str], folder: str, port: int, path: str) -> Iterator[Other]:
    more = {"TRACKIO_DIR": folder, "TRACKIO_WRITE_TOKEN": TRACKIO_TOKEN, "HF_HUB_OFFLINE": "1"}
    more |= {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    log = Path(folder) / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=folder, env=os.environ | more, stdout=file, stderr=file, start_new_session=True
        )
    headers = {"Content-Type": "application/json", "X-Trackio-Write-Token": TRACKIO_TOKEN}
    other = Other(port, process.pid, headers)
    try:
        end = time.monotonic() + START_S
        while not _answers(other, path):
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"{' '.join(command)} does not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.1)
        yield other
    finally:
        for pid in (*machine.descendants(process.pid), process.pid):
            _end(pid)
        process.wait(30)


def _answers(other: Other, path: str) -> bool:
    try:
        other.raw("GET", path)
    except OSError:
        return False
    return True


def _end(pid: int) -> None:
    try:
        os.kill(pid, 15)
    except ProcessLookupError:
        return


def _rate(what: str, other: Other, points: int, send: Callable[[int], None]) -> Rate:
    send(-1)
    cpu, began = machine.cpu_s(other.pid), time.perf_counter()
    for number in range(points // ENTRIES):
        send(number)
    took = time.perf_counter() - began
    spent = machine.cpu_s(other.pid) - cpu
    return Rate(what, points / took, points / max(spent, 1e-9))


def _mlflow_run(other: Other) -> str:
    made = other.call("POST", "/api/2.0/mlflow/runs/create", {"experiment_id": "0", "start_time": 1})
    return str(made["run"]["info"]["run_id"])


def _mlflow_sender(other: Other, run: str) -> Callable[[int], None]:
    def send(number: int) -> None:
        rows = [
            _metric(f"tensor.{n % KEYS}.amax", number * ENTRIES // KEYS + n // KEYS) for n in range(ENTRIES)
        ]
        other.call("POST", "/api/2.0/mlflow/runs/log-batch", {"run_id": run, "metrics": rows})

    return send


def _metric(key: str, step: int) -> dict[str, Any]:
    return {"key": key, "value": 1 / (step + 1000), "timestamp": 1_700_000_000_000 + step, "step": step}


def _trackio_sender(other: Other) -> Callable[[int], None]:
    def send(number: int) -> None:
        first = number * ENTRIES // KEYS
        steps = range(first, first + ENTRIES // KEYS)
        logs = [_logged({f"tensor.{n}.amax": 1 / (step + 1000) for n in range(KEYS)}, step) for step in steps]
        other.call("POST", "/api/bulk_log", {"logs": logs, "hf_token": None})

    return send


def _logged(metrics: Mapping[str, float], step: int) -> dict[str, Any]:
    return {"project": "bench", "run": "run", "metrics": metrics, "step": step, "config": None}


def _pages(other: Other, path: str, points: int) -> None:
    got, token = 0, ""
    while True:
        answer = other.call("GET", path + (f"&page_token={quote(token)}" if token else ""))
        got += len(answer["metrics"])
        token = answer.get("next_page_token", "")
        if not token:
            break
    if got != points:
        raise SystemExit(f"{path}: {got} points of {points}")


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _said_where(python: str | None) -> bool:
    if python is None:
        print("MLflow and trackio were not run: --peers names the Python of an environment that has them\n")
    return python is not None
