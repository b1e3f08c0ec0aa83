"""Batches a second through 1, 2, 4 worker processes on one PostgreSQL, and what each costs in CPU time.

    python -m benchmarks.server.workers                       # 675 tensors, 6 statistics, 64 steps a batch
    python -m benchmarks.server.workers --workers 1,2 --seconds 20 --diagnose

Starts a PostgreSQL of its own from the installed programs (durable commits), then ``floatscope serve`` with
each number of workers, and sends from processes of its own. All of them share the machine's cores: the
figures say what several processes cost and bring here, not what a machine for each would do.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import psycopg

from benchmarks.server import machine
from floatscope.protocol import wire_safetensors
from floatscope.protocol.batch import Batch
from tests.server import postgres
from tests.server.live import TOKEN, in_own_process, wait_for

STATS = ("amax", "rms", "scale", "nan_count", "overflow_pct", "underflow_pct")
READY = "Application startup complete"
BEGIN_S = 120.0  # time to start and to make the batches
KIND = {"Authorization": f"Bearer {TOKEN}", "Content-Type": wire_safetensors.CONTENT_TYPE}


@dataclass(frozen=True)
class Load:
    """runs: how many runs send at once.  batches: made in advance, sent one after the other."""

    runs: int
    ranks: int
    tensors: int
    steps: int
    batches: int
    seconds: float

    @property
    def values(self) -> int:
        """Statistics in one batch."""
        return self.tensors * len(STATS) * self.steps


@dataclass(frozen=True)
class Figures:
    workers: int
    batches: int
    wall_s: float
    median_ms: float
    p99_ms: float
    server_cpu_s: float
    database_cpu_s: float
    client_cpu_s: float


def bodies(load: Load, *, seed: int) -> list[bytes]:
    """Batches as a trainer makes them: amax noisy in bf16, scale a power of two, overflow rare."""
    rng = np.random.default_rng(seed)
    names = tuple(sorted(f"layers.{n // 9}.block.fc{n % 9}/input" for n in range(load.tensors)))
    table = {name: {"format": "e4m3", "call_order": n} for n, name in enumerate(names)}
    shape = (load.steps, load.tensors)
    made = []
    for number in range(load.batches):
        amax = (1 + rng.random(shape)).astype(np.float32)
        stats = {
            "amax": (amax.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32),
            "rms": (rng.random(shape) * 0.1).astype(np.float32),
            "scale": np.full(shape, 128.0, np.float32),
            "nan_count": np.zeros(shape, np.float32),
            "overflow_pct": np.where(rng.random(shape) < 0.01, 0.01, 0.0).astype(np.float32),
            "underflow_pct": (rng.integers(0, 50, shape) / 4096).astype(np.float32),
        }
        step = np.arange(number * load.steps, (number + 1) * load.steps, dtype=np.int64)
        batch = Batch(
            step=step,
            time=np.asarray(1.7e9 + step, np.float64),
            scalar_names=("loss", "lr"),
            scalars=np.column_stack([3 - 1e-5 * step, np.full(load.steps, 3e-4)]),
            scalars_present=np.ones((load.steps, 2), bool),
            tensor_names=names,
            stat_row=np.arange(load.steps, dtype=np.int64),
            stats=stats,
            stats_present={name: np.ones(shape, bool) for name in STATS},
        )
        made.append(wire_safetensors.encode(batch, table, with_table=number == 0))
    return made


def _agent(port: int, load: Load, run_ids: Sequence[str], together: Barrier, out: str) -> None:
    """One process that sends for some runs: a connection for every rank, as agents have."""
    made = bodies(load, seed=1)
    times: list[float] = []
    lanes = [
        (run_id, rank, http.client.HTTPConnection("127.0.0.1", port, timeout=60))
        for run_id in run_ids
        for rank in range(load.ranks)
    ]
    together.wait(BEGIN_S)
    cpu, end = time.process_time(), time.time() + load.seconds
    for seq, content in enumerate(made):
        for run_id, rank, connection in lanes:
            if time.time() >= end:
                break
            began = time.perf_counter()
            path = f"/api/v1/runs/{run_id}/ranks/{rank}/batches/{seq}"
            connection.request("PUT", path, body=content, headers=KIND)
            answer = connection.getresponse()
            said = answer.read()
            if answer.status != 200:
                raise SystemExit(f"{answer.status}: {said[:300]!r}")
            times.append(time.perf_counter() - began)
    found = {"times": times, "ended": time.time(), "cpu_s": time.process_time() - cpu}
    Path(out).write_text(json.dumps(found))


def measure(load: Load, url: str, *, workers: int, diagnose: bool, agents: int, database_pid: int) -> Figures:
    """One server with so many workers under the load."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        settings = {"FLOATSCOPE_DATABASE_URL": url, "FLOATSCOPE_DIAGNOSE": str(int(diagnose))}
        with in_own_process(place / "data", **settings) as process:
            process.arguments = ("--workers", str(workers))
            client = process.start(seconds=BEGIN_S)
            wait_for(lambda: process.log.read_text().count(READY) == workers, seconds=BEGIN_S)
            run_ids = [f"run-{number}" for number in range(load.runs)]
            for run_id in run_ids:
                client.open_run(run_id)
            context = multiprocessing.get_context("spawn")
            together = context.Barrier(agents + 1)
            senders = [
                context.Process(
                    target=_agent,
                    args=(process.port, load, run_ids[n::agents], together, str(place / f"{n}.json")),
                )
                for n in range(agents)
            ]
            for sender in senders:
                sender.start()
            assert process.process is not None
            together.wait(BEGIN_S)
            start = time.time()
            before = machine.cpu_s(process.process.pid), machine.cpu_s(database_pid)
            for sender in senders:
                sender.join()
            after = machine.cpu_s(process.process.pid), machine.cpu_s(database_pid)
            for run_id in run_ids:
                assert client.get(f"/api/v1/runs/{run_id}").json["last_step"] is not None, run_id
            process.stop()
        found = [json.loads((place / f"{n}.json").read_text()) for n in range(agents)]
    times = np.array([t for part in found for t in part["times"]])
    return Figures(
        workers,
        len(times),
        max(part["ended"] for part in found) - start,
        float(np.median(times)) * 1e3,
        float(np.quantile(times, 0.99)) * 1e3,
        after[0] - before[0],
        after[1] - before[1],
        sum(part["cpu_s"] for part in found),
    )


def _server_of(url: str) -> int:
    """Process of the database server: the parent of a backend."""
    with psycopg.connect(url) as connection:
        backend = connection.info.backend_pid
        return int(Path(f"/proc/{backend}/stat").read_text().rpartition(") ")[2].split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description="Throughput of several workers on one PostgreSQL.")
    parser.add_argument("--workers", default="1,2,4", help="numbers of workers, one after the other")
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tensors", type=int, default=675)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--batches", type=int, default=40, help="at most so many for each rank")
    parser.add_argument("--agents", type=int, default=4, help="processes that send")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--diagnose", action="store_true", help="with live diagnosis, not storage alone")
    args = parser.parse_args()
    load = Load(args.runs, args.ranks, args.tensors, args.steps, args.batches, args.seconds)
    print(
        f"{load.runs} runs of {load.ranks} ranks, {load.values:,} values a batch, "
        f"{os.cpu_count()} cores, diagnosis {'on' if args.diagnose else 'off'}"
    )
    print("workers  batches/s  Mvalues/s  median ms  p99 ms   CPU ms a batch: server  database  senders")
    with postgres.cluster(durable=True) as url:
        pid = _server_of(url)
        for workers in map(int, args.workers.split(",")):
            name = postgres.new_database(url, f"workers_{workers}")
            found = measure(
                load,
                name,
                workers=workers,
                diagnose=args.diagnose,
                agents=args.agents,
                database_pid=pid,
            )
            each = 1e3 / max(found.batches, 1)
            print(
                f"{found.workers:7d}  {found.batches / found.wall_s:9.1f}"
                f"  {found.batches * load.values / found.wall_s / 1e6:9.2f}"
                f"  {found.median_ms:9.1f}  {found.p99_ms:6.0f}"
                f"   {found.server_cpu_s * each:22.1f}  {found.database_cpu_s * each:8.1f}"
                f"  {found.client_cpu_s * each:7.1f}"
            )


if __name__ == "__main__":
    main()
