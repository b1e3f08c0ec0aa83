"""Answers of a live server about one long run, and about a list of a thousand: p50 and p95 over HTTP."""

from __future__ import annotations

import json
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from benchmarks.server import machine, peers
from benchmarks.server.ingest import wait_for_chunks
from benchmarks.server.serving import Lane, Reader, Running, in_threads, server
from benchmarks.server.telemetry import STATS, Shape, Telemetry

RUN = "long"
LISTED = 1_000
WARM_TIMES = 40
COLD_TIMES = 1
PEER_POINTS = 10_000  # fewer than here: the others take minutes to be given more
PEER_TIMES = 5
EXPORT_STEPS = 1_024
PEAK_MB = 400.0


@dataclass(frozen=True)
class Question:
    """path: of the n-th time it is asked, so that it is not the same one over and over. most_ms: the target.
    pages: how many of the answer, one after the other by its cursor, are timed together.
    """

    name: str
    path: Callable[[int], str]
    most_ms: float | None = None
    pages: int = 1

    def timed(self, reader: Reader, n: int) -> float:
        """Seconds that all of the answer took."""
        took, content = reader.timed(self.path(n))
        for _ in range(self.pages - 1):
            cursor = json.loads(content)["next_cursor"]
            if cursor is None:
                break
            more, content = reader.timed(f"{self.path(n)}&cursor={cursor}")
            took += more
        return took


def questions(telemetry: Telemetry, steps: int) -> list[Question]:
    api, names = f"/api/v1/runs/{RUN}", telemetry.names

    def series(n: int) -> str:
        return (
            f"{api}/series?tensor={quote(names[n * 37 % len(names)], safe='')}&stat={STATS[n % len(STATS)]}"
        )

    def heat(n: int) -> str:
        return f"{api}/heatmap?stat={STATS[n % len(STATS)]}"

    def part(n: int) -> str:
        first = (n * 7919) % max(steps - 2048, 1)
        return f"from={first}&to={first + 2047}"

    return [
        Question(f"one series, all {steps:,} steps", series, 30.0),
        Question("one series, 2,048 steps", lambda n: f"{series(n)}&{part(n)}"),
        Question(f"heat map, {len(names)} tensors, all steps", heat, 50.0),
        Question(f"heat map, {len(names)} tensors, sat", lambda _n: f"{api}/heatmap?stat=sat", 50.0),
        Question(f"heat map, {len(names)} tensors, 2,048 steps", lambda n: f"{heat(n)}&{part(n)}"),
        Question("last frame", lambda _n: f"{api}/frame", 5.0),
        Question("frame of a step", lambda n: f"{api}/frame?step={(n * 7919) % steps}"),
        Question("all scalars, all steps", lambda _n: f"{api}/scalars"),
        Question(f"list of {LISTED:,} runs, in two pages", lambda _n: "/api/v1/runs?limit=500", 50.0, 2),
        Question("page of the overview", lambda _n: "/"),
        Question("page of the run", lambda _n: f"/runs/{RUN}"),
    ]


def report(*, steps: int, cache: str | None, python: str | None) -> None:
    """Builds the run, unless the cache has it, asks, and prints."""
    telemetry = Telemetry(Shape())
    values = steps * telemetry.shape.tensors * len(STATS)
    found = peers.reads(python, points=PEER_POINTS, times=PEER_TIMES)
    with built(telemetry, steps, cache) as data:
        asked = questions(telemetry, steps)
        cold = {one.name: _cold(data, one) for one in asked if one.most_ms is not None}
        before = machine.load_average()
        with server(data, FLOATSCOPE_DIAGNOSE="0") as running:
            warm = {one.name: _warm(running, one) for one in asked}
            lines, took, size = _export(running, steps)
            peak = machine.peak_mb(running.pid)
        _print(asked, warm, cold, f"{values:,} values in one run ({before}; {machine.load_average()} after)")
    print(
        f"  export of {lines:,} steps as JSONL: {took:.2f} s, {lines / took:,.0f} steps a second, "
        f"{lines * telemetry.shape.tensors * len(STATS) / took / 1e6:.2f} million values, "
        f"{size / took / 1e6:.1f} MB"
    )
    print(
        f"  most memory of the server that answered all this: {peak:.0f} MB, "
        f"at most {PEAK_MB:.0f}: {machine.verdict(peak, PEAK_MB, at_least=False)}\n"
    )
    own = warm[asked[0].name][0]
    for other in found:
        p50, p95 = machine.quantiles_ms(other.took_s, 0.5, 0.95)
        print(
            f"  against {other.what}: one series of {other.points:,} points (here {steps:,}): "
            f"p50 {p50:,.0f} ms, p95 {p95:,.0f} ms   x {p50 / own:,.0f}"
        )
    print()


def _print(
    asked: list[Question], warm: dict[str, list[float]], cold: dict[str, list[float]], title: str
) -> None:
    print(f"{title}\n")
    print(f"  {'ms':<40} {'p50':>7} {'p95':>7} {'CPU':>7} {'cold':>7}   p50 warm at most")
    for one in asked:
        p50, p95, cpu = warm[one.name]
        line = f"  {one.name:<40} {p50:7.1f} {p95:7.1f} {cpu:7.1f}"
        if one.most_ms is not None:
            said = machine.verdict(p50, one.most_ms, at_least=False)
            line += f" {cold[one.name][0]:7.1f}   {one.most_ms:.0f}: {said}"
        print(line)
    print("  CPU: of the server, for one answer")
    print("  cold: the first answer of a new server, files out of the system's cache")


def _warm(running: Running, question: Question) -> list[float]:
    with Reader(running.port) as reader:
        for n in range(8):
            question.timed(reader, n)
        cpu = machine.cpu_s(running.pid)
        times = [question.timed(reader, n) for n in range(8, 8 + WARM_TIMES)]
        spent = machine.cpu_s(running.pid) - cpu
    return [*machine.quantiles_ms(times, 0.5, 0.95), spent / WARM_TIMES * 1e3]


def _cold(data: Path, question: Question) -> list[float]:
    """The first answer of a server about the run; it has answered one other request before."""
    times = []
    for n in range(COLD_TIMES):
        machine.forget_files(data)
        with server(data, FLOATSCOPE_DIAGNOSE="0") as running, Reader(running.port) as reader:
            times.append(question.timed(reader, n))
    return machine.quantiles_ms(times, 0.5)


def _export(running: Running, steps: int) -> tuple[int, float, int]:
    first = max(steps // 2 - EXPORT_STEPS, 0)
    with Reader(running.port) as reader:
        path = f"/api/v1/runs/{RUN}/steps?from={first}&to={first + EXPORT_STEPS - 1}"
        took, content = reader.timed(path)
    lines = content.count(b"\n") - 1
    assert "run" in json.loads(content[: content.index(b"\n")])
    return lines, took, len(content)


@contextmanager
def built(telemetry: Telemetry, steps: int, cache: str | None) -> Iterator[Path]:
    """A data directory with the run and others for the list; in the cache it stays."""
    with ExitStack() as stack:
        base = Path(cache or stack.enter_context(tempfile.TemporaryDirectory()))
        data, mark = base / f"data-{steps}", base / f"data-{steps}.whole"
        if not mark.exists():
            if data.exists():
                raise SystemExit(f"{data} was not finished; delete it")
            base.mkdir(parents=True, exist_ok=True)
            _build(data, telemetry, steps)
            mark.touch()
        yield data


def _build(data: Path, telemetry: Telemetry, steps: int) -> None:
    with server(data, FLOATSCOPE_DIAGNOSE="0") as running:
        list_runs(running, LISTED - 1)
        running.client.open_run(RUN, **telemetry.description)
        began, lane = time.time(), Lane(running.port, RUN)
        for seq in range(steps // telemetry.shape.steps):
            lane.put(seq, telemetry.body(seq))
        lane.close()
        took = time.time() - began
        left = wait_for_chunks(data / "floatscope.db")
        took_all = time.time() - began
    with sqlite3.connect(data / "floatscope.db") as c:
        chunks = c.execute("select count(*) from chunk").fetchone()[0]
    values = steps * telemetry.shape.tensors * len(STATS)
    size = machine.folder_bytes(data)
    print(
        f"built through HTTP, diagnosis off: {values:,} values in {took:.0f} s, "
        f"{values / took / 1e6:.1f} million a second ({values / took_all / 1e6:.1f} until all is in chunks); "
        f"{chunks} chunks, {left} rows wait; {size / values:.2f} bytes a value\n"
    )


def list_runs(running: Running, count: int) -> None:
    """Runs that ended, each with a few steps, for the list."""
    steps = [{"step": n, "loss": 2.0 - n / 100, "lr": 1e-3} for n in range(16)]

    def some(of: range) -> None:
        for n in of:
            name = f"other-{n:04d}"
            for answer in (
                running.client.open_run(name, project=f"project-{n % 5}", tags={"seed": n}),
                running.client.put(name, 0, {"steps": steps}),
                running.client.call("POST", f"/api/v1/runs/{name}/finish", {"status": "finished"}),
            ):
                if answer.status not in (200, 201):
                    raise SystemExit(f"{name}: {answer.status}: {answer.text[:300]}")

    in_threads([lambda k=k: some(range(k, count, 4)) for k in range(4)])  # type: ignore[misc]
