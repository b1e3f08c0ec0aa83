"""Two hundred small runs that send at once, a thousand in the list: what it takes, and nothing is lost."""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.server import machine
from benchmarks.server.reads import Question, list_runs
from benchmarks.server.serving import Lane, Reader, Running, in_threads, noted, server
from benchmarks.server.telemetry import Shape, Telemetry

SENDERS = 8
SHAPE = Shape(tensors=14, steps=64, variety=64)
LIST_MS = 50.0
PEAK_MB = 400.0


def report(*, live: int, ended: int, batches: int) -> None:
    """Every run sends ``batches`` batches of 84 series; with live diagnosis, as it is installed."""
    telemetry = Telemetry(SHAPE)
    with tempfile.TemporaryDirectory() as folder:
        data, meter = Path(folder) / "data", Path(folder) / "meter.json"
        with server(data, meter=meter) as running:
            list_runs(running, ended)
            lanes = [Lane(running.port, f"live-{n:03d}") for n in range(live)]
            for n, lane in enumerate(lanes):
                running.client.open_run(lane.run_id, project=f"project-{n % 5}", **telemetry.description)
                lane.put(0, telemetry.body(0))
                lane.sent.clear()
            before, cpu, began = machine.load_average(), machine.cpu_s(running.pid), time.time()
            listed = _send(running, lanes, telemetry, batches)
            took, spent = time.time() - began, machine.cpu_s(running.pid) - cpu
            rss = machine.rss_mb(running.pid)
            lost = _lost(lanes, running, batches)
        found = noted(meter)
        stored = _stored(data / "floatscope.db")
    sent = [one for lane in lanes for one in lane.sent]
    p50, p99, most = machine.quantiles_ms([t for _at, t in sent], 0.5, 0.99, 1.0)
    l50, l95 = machine.quantiles_ms(listed, 0.5, 0.95)
    print(
        f"{live} runs at once over {live} connections, {SENDERS} senders, 84 series, "
        f"{SHAPE.steps} steps a batch; {live + ended:,} runs in the list; "
        f"diagnosis on ({before}; {machine.load_average()} after)\n"
    )
    print(f"  batches a second          {len(sent) / took:9.1f}   {len(sent)} batches in {took:.1f} s")
    print(f"  million values a second   {len(sent) * SHAPE.values / took / 1e6:9.2f}")
    print(f"  CPU ms a batch            {1e3 * spent / len(sent):9.2f}   in the server")
    total = sum(found.shares.values())
    print("    " + ", ".join(f"{name} {100 * part / total:.0f} %" for name, part in found.shares.items()))
    print(f"  ms a batch                      p50 {p50:.1f}, p99 {p99:.1f}, most {most:.1f}")
    print(
        f"  list of {live + ended:,} runs meanwhile   p50 {l50:.1f} ms, p95 {l95:.1f} ms   "
        f"at rest at most {LIST_MS:.0f}: see reads"
    )
    said = machine.verdict(found.peak_mb, PEAK_MB, at_least=False)
    print(
        f"  most memory, MB           {found.peak_mb:9.0f}   "
        f"at most {PEAK_MB:.0f}: {said}; {rss:.0f} at the end"
    )
    waited = sum(lane.waited for lane in lanes)
    print(f"  told to wait (429)        {waited:9d}")
    expected = live * (batches + 1)
    print(f"  stored batches            {stored:9d}   {expected} sent; runs that lack something: {lost}\n")
    if lost or stored != expected + ended:
        raise SystemExit(f"{expected + ended} batches were acknowledged, {stored} are stored")


def _send(running: Running, lanes: Sequence[Lane], telemetry: Telemetry, batches: int) -> list[float]:
    """All runs in turn, as if they trained side by side. Returns how long the list took meanwhile, in s."""
    bodies = [telemetry.body(seq) for seq in range(1, batches + 1)]
    listed: list[float] = []
    running_still = [True]
    whole = Question("list", lambda _n: "/api/v1/runs?limit=500", pages=2)

    def some(mine: Sequence[Lane]) -> None:
        for seq, body in enumerate(bodies, 1):
            for lane in mine:
                lane.put(seq, body)
        for lane in mine:
            lane.close()

    def look() -> None:
        with Reader(running.port) as reader:
            while running_still[0]:
                listed.append(whole.timed(reader, 0))
                time.sleep(0.5)

    def all_send() -> None:
        try:
            in_threads([lambda k=k: some(lanes[k::SENDERS]) for k in range(SENDERS)])  # type: ignore[misc]
        finally:
            running_still[0] = False

    in_threads([all_send, look])
    return listed


def _lost(lanes: Sequence[Lane], running: Running, batches: int) -> int:
    """How many runs are not where they should be."""
    last = (batches + 1) * SHAPE.steps - 1
    with Reader(running.port) as reader:
        found = [reader.json(f"/api/v1/runs/{lane.run_id}") for lane in lanes]
    return sum(one["last_step"] != last or one["ranks"][0]["expected_seq"] != batches + 1 for one in found)


def _stored(database: Path) -> int:
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as c:
        return int(c.execute("select count(*) from batch").fetchone()[0])
