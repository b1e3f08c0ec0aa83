"""Pages of a run whose histograms are many, and of one with 100,000 tensors: CPU and memory of the server."""

from __future__ import annotations

import gzip
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import numpy as np

from benchmarks.server import machine
from benchmarks.server.ingest import wait_for_chunks
from benchmarks.server.serving import Lane, Reader, Running, server
from benchmarks.server.telemetry import Shape, Telemetry
from floatscope.protocol.batch import Batch
from floatscope.protocol.names import HIST_BINS

SAMPLED, WIDE = "sampled", "wide"
SAMPLED_STEPS, SAMPLED_EVERY = 5_000, 50
WIDE_BATCHES = 12
PER_TENSOR = 65_536
"""Values counted in a histogram."""
MOST_CPU_MS, MOST_HTML_KB, MOST_MB = 1_000.0, 60.0, 400.0
AGAIN = 3
SETTLED_S = 5.0


class Histograms(Telemetry):
    """Batches whose first step has the histogram of every tensor."""

    def batch(self, number: int, rng: np.random.Generator) -> Batch:
        found = super().batch(number, rng)
        exponents = np.arange(HIST_BINS) - 40.5
        middle = np.log2(self._base)[:, None] - 2
        shares = np.exp2(-((exponents - middle) ** 2) / 8)
        counts = rng.poisson(PER_TENSOR * shares / shares.sum(axis=1, keepdims=True)).astype(np.uint32)
        return replace(found, hist_row=np.zeros(1, np.int64), hist_log2=counts[None])

    def body(self, number: int) -> bytes:
        content = bytearray(super().body(number))
        head = int.from_bytes(content[:8], "little")
        begin, end = json.loads(content[8 : 8 + head])["hist_step"]["data_offsets"]
        content[8 + head + begin : 8 + head + end] = np.int64(number * self.shape.steps).tobytes()
        return bytes(content)


@dataclass(frozen=True)
class Cost:
    """Of one page. first_ms, later_ms: CPU of the server. kb: of the page compressed."""

    name: str
    first_ms: float
    later_ms: float
    kb: float


def report(*, cache: str | None) -> None:
    """Builds the runs, unless the cache has them, reads their pages, and prints."""
    with built(cache) as data, server(data, FLOATSCOPE_DIAGNOSE="0") as running:
        time.sleep(SETTLED_S)
        before = machine.rss_mb(running.pid)
        found = {
            run: [_cost(running, name, path) for name, path in _pages(running, run)]
            for run in (SAMPLED, WIDE)
        }
        peak = machine.peak_mb(running.pid)
    print(f"CPU of the server, ms; first and later requests ({machine.load_average()})\n")
    for run, costs in found.items():
        print(f"  {run}")
        for cost in costs:
            print(f"    {cost.name:<28} {cost.first_ms:7.0f} {cost.later_ms:7.0f} {cost.kb:8.1f} KB gz")
    most = max(cost.first_ms for costs in found.values() for cost in costs)
    page = max(costs[0].kb for costs in found.values())
    print(f"\n  memory {before:.0f} MB at first")
    for what, value, limit in (
        ("most CPU of a request, ms", most, MOST_CPU_MS),
        ("run page, KB", page, MOST_HTML_KB),
        ("most memory, MB", peak, MOST_MB),
    ):
        kept = machine.verdict(value, limit, at_least=False)
        print(f"  {what}: {value:.0f}, at most {limit:.0f}: {kept}")
    print()


def _pages(running: Running, run: str) -> list[tuple[str, str]]:
    names = telemetry(run).names
    tensor, middle = quote(names[len(names) // 2], safe=""), _steps(run) // 2
    api, page = f"/api/v1/runs/{run}", f"/runs/{run}"
    return [
        ("run page", page),
        ("run page at a step", f"{page}?at={middle}"),
        ("range ruler", f"{page}/ruler?at={middle // 2}"),
        ("range ruler, all", f"{page}/ruler?at={middle // 2}&all=1"),
        ("tensors", f"{page}/tensors"),
        ("tensors at a step", f"{page}/tensors?at={middle}"),
        ("tensors found by name", f"{page}/tensors?q=017.up"),
        ("one tensor", f"{page}/tensors/{tensor}"),
        ("its histograms", f"{api}/histogram?tensor={tensor}"),
        ("heat map", f"{api}/heatmap?stat=headroom_log2&columns=400"),
        ("search", f"/api/v1/search?q=017.up&run={run}"),
        ("report", f"{page}/report"),
        ("compare", f"/compare?run={run}&baseline={run}"),
    ]


def _cost(running: Running, name: str, path: str) -> Cost:
    spent, content = [], b""
    with Reader(running.port) as reader:
        for _ in range(1 + AGAIN):
            before = machine.cpu_s(running.pid)
            _took, content = reader.timed(path)
            spent.append((machine.cpu_s(running.pid) - before) * 1e3)
    return Cost(name, spent[0], statistics.median(spent[1:]), len(gzip.compress(content, 1)) / 1e3)


def telemetry(run: str) -> Telemetry:
    """What the run sends."""
    if run == SAMPLED:
        return Histograms(Shape(steps=SAMPLED_EVERY, variety=8))
    return Telemetry(Shape(tensors=100_000, steps=4, variety=2))


def _steps(run: str) -> int:
    return SAMPLED_STEPS if run == SAMPLED else WIDE_BATCHES * 4


@contextmanager
def built(cache: str | None) -> Iterator[Path]:
    """A data directory with both runs; in the cache it stays."""
    with ExitStack() as stack:
        base = Path(cache or stack.enter_context(tempfile.TemporaryDirectory()))
        data, mark = base / "data-extremes", base / "data-extremes.whole"
        if not mark.exists():
            if data.exists():
                raise SystemExit(f"{data} was not finished; delete it")
            base.mkdir(parents=True, exist_ok=True)
            with server(data, FLOATSCOPE_DIAGNOSE="0") as running:
                for run in (SAMPLED, WIDE):
                    _send(running, run)
                wait_for_chunks(data / "floatscope.db")
            mark.touch()
        yield data


def _send(running: Running, run: str) -> None:
    sent = telemetry(run)
    running.client.open_run(run, **sent.description)
    lane = Lane(running.port, run)
    for seq in range(_steps(run) // sent.shape.steps):
        lane.put(seq, sent.body(seq))
    lane.close()
