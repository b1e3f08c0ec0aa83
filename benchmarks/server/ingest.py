"""Batches through HTTP into SQLite with durable commits: values a second, and where the time goes."""

from __future__ import annotations

import sqlite3
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.server import machine, peers
from benchmarks.server.peers import Rate
from benchmarks.server.serving import Lane, in_threads, noted, server
from benchmarks.server.telemetry import Shape, Telemetry

CHUNKED_S = 120.0
RATE = {"storage alone": 8e6, "with live diagnosis": 1e6}
P99_MS = 100.0
PEAK_MB = 400.0
POINTS = 20_000  # sent to each of the others


@dataclass(frozen=True)
class Taken:
    """One server under the load. rate: values a second until the last answer; in_chunks: until all that was
    due was rewritten too.  compacting_ms: latencies of batches that were sent while chunks were made.
    """

    rate: float
    in_chunks: float
    batch_ms: Sequence[float]
    compacting_ms: Sequence[float]
    cpu_s: float
    shares: dict[str, float]
    peak_mb: float
    bytes_a_value: float
    left_rows: int


def take(telemetry: Telemetry, batches: int, *, runs: int, diagnose: bool) -> Taken:
    """Starts a server, sends so many batches for each run at once, waits until chunks are made, stops it."""
    with tempfile.TemporaryDirectory() as folder:
        data, meter = Path(folder) / "data", Path(folder) / "meter.json"
        with server(data, meter=meter, FLOATSCOPE_DIAGNOSE=str(int(diagnose))) as running:
            lanes = [Lane(running.port, f"run-{n}") for n in range(runs)]
            for lane in lanes:
                running.client.open_run(lane.run_id, **telemetry.description)
                lane.put(0, telemetry.body(0))
                lane.sent.clear()
            began = time.time()
            in_threads([lambda lane=lane: _send(lane, telemetry, batches) for lane in lanes])  # type: ignore[misc]
            answered = time.time()
            left = wait_for_chunks(data / "floatscope.db")
            chunked = time.time()
        found = noted(meter)
        size = machine.folder_bytes(data)
    sent = [one for lane in lanes for one in lane.sent]
    values = len(sent) * telemetry.shape.values
    beside = [took for at, took in sent if any(at < end and at + took > a for a, end in found.compacting)]
    return Taken(
        rate=values / (answered - began),
        in_chunks=values / (chunked - began),
        batch_ms=machine.quantiles_ms([took for _at, took in sent], 0.5, 0.99, 1.0),
        compacting_ms=machine.quantiles_ms(beside, 0.5, 0.99, 1.0),
        cpu_s=found.total_s / values,
        shares={name: part / values for name, part in found.shares.items()},
        peak_mb=found.peak_mb,
        bytes_a_value=size / values,
        left_rows=left,
    )


def _send(lane: Lane, telemetry: Telemetry, batches: int) -> None:
    for seq in range(1, batches + 1):
        lane.put(seq, telemetry.body(seq))
    lane.close()


def wait_for_chunks(database: Path) -> int:
    """Waits until nothing is being rewritten any more; the hot rows that are left, too few for a chunk."""
    end, quiet = time.monotonic() + CHUNKED_S, 0
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as c:
        while True:
            query = "select max(hot_rows), sum(hot_rows), count(compactor) from rank"
            most, rows, claimed = c.execute(query).fetchone()
            quiet = quiet + 1 if most < 4096 and not claimed else 0
            if quiet > 1 or time.monotonic() > end:
                return int(rows)
            time.sleep(0.05)


def report(*, batches: int, diagnosed: int, repeats: int, runs: int, python: str | None) -> None:
    """Prints both kinds, their targets, and the others in the same run."""
    shape = Shape()
    print(
        f"{shape.tensors} tensors x 6 statistics x {shape.steps} steps = {shape.values:,} values a batch; "
        f"{runs} run{'s' if runs > 1 else ''} at once, a connection each; SQLite, synchronous=FULL\n"
    )
    telemetry = Telemetry(shape)
    others = peers.rates(python, points=POINTS)
    for name, diagnose, count in (
        ("storage alone", False, batches),
        ("with live diagnosis", True, diagnosed),
    ):
        before = machine.load_average()
        found = [take(telemetry, count, runs=runs, diagnose=diagnose) for _ in range(repeats)]
        found.sort(key=lambda one: one.rate)
        middle = found[len(found) // 2]
        print(f"{name}: {count * runs} batches, {repeats} times ({before}; {machine.load_average()} after)")
        _print_rate(name, found, middle)
        _print_rest(found, middle)
        _print_others(middle.rate, others)


def _print_rate(name: str, found: Sequence[Taken], middle: Taken) -> None:
    said = machine.verdict(middle.rate, RATE[name], at_least=True)
    each = ", ".join(f"{one.rate / 1e6:.2f}" for one in found)
    print(
        f"  million values a second    {middle.rate / 1e6:8.2f}   "
        f"at least {RATE[name] / 1e6:.0f}: {said}   ({each})"
    )
    print(
        f"  .. until all is in chunks  {middle.in_chunks / 1e6:8.2f}   {middle.left_rows} rows wait for more"
    )


def _print_rest(found: Sequence[Taken], middle: Taken) -> None:
    print(f"  CPU ms a million values    {middle.cpu_s * 1e9:8.1f}   in the server, of that:")
    for part, spent in middle.shares.items():
        print(f"    {part:<20}     {spent * 1e9:8.1f}   {100 * spent / middle.cpu_s:.0f} %")
    for what, of in (("all", "batch_ms"), ("while chunks are made", "compacting_ms")):
        p50, p99, most = (statistics.median(getattr(one, of)[k] for one in found) for k in range(3))
        said = f"p99 at most {P99_MS:.0f}: {machine.verdict(p99, P99_MS, at_least=False)}"
        print(f"  ms a batch, {what:<21}  p50 {p50:.1f}, p99 {p99:.1f}, most {most:.1f}   {said}")
    peak = max(one.peak_mb for one in found)
    print(
        f"  most memory, MB            {peak:8.0f}   "
        f"at most {PEAK_MB:.0f}: {machine.verdict(peak, PEAK_MB, at_least=False)}"
    )
    print(f"  bytes a value on disk      {middle.bytes_a_value:8.2f}   the whole data directory")


def _print_others(rate: float, others: Sequence[Rate]) -> None:
    for other in others:
        print(
            f"  against {other.what:<42} {other.a_second:9,.0f} points a second   "
            f"x {rate / other.a_second:,.0f}"
        )
    print()
