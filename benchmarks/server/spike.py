"""A spike, a NaN and an Inf of one step among a million are in every answer, however far one zooms out."""

from __future__ import annotations

import base64
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from benchmarks.server import machine
from benchmarks.server.ingest import wait_for_chunks
from benchmarks.server.serving import Lane, Reader, Running, server
from floatscope.protocol import wire_safetensors
from floatscope.protocol.batch import Batch

RUN = "spiked"
TENSORS = ("blocks.0.mlp.fc1/input", "blocks.0.mlp.fc1/weight")
STATS = ("amax", "rms")
SPIKE = 1e6
POINTS = (1, 2, 3, 7, 50, 320, 900, 2_500, 10_000)
COLUMNS = (1, 2, 9, 60, 250, 500)
STEPS = 4_096  # of a batch, the most there may be
DTYPE = np.float32


@dataclass(frozen=True)
class Planted:
    """What was planted (spike, nan, inf) -> its step; in the first tensor's amax and in the loss."""

    steps: int
    at: Mapping[str, int]


def planted(steps: int, *, seed: int = 0) -> Planted:
    """Three different steps, in different chunks if there are several."""
    rng = np.random.default_rng(seed)
    third = steps // 3
    return Planted(
        steps, {what: k * third + int(rng.integers(third)) for k, what in enumerate(("spike", "nan", "inf"))}
    )


def bodies(plan: Planted) -> Iterator[bytes]:
    rng = np.random.default_rng(1)
    table = {name: {"format": "e4m3"} for name in TENSORS}
    odd = {"spike": SPIKE, "nan": np.nan, "inf": np.inf}
    for first in range(0, plan.steps, STEPS):
        step = np.arange(first, min(first + STEPS, plan.steps), dtype=np.int64)
        loss = rng.normal(2.0, 0.1, len(step))
        size = (len(step), len(TENSORS))
        stats = {name: rng.normal(1.0, 0.1, size).astype(DTYPE) for name in STATS}
        for what, at in plan.at.items():
            if first <= at < first + len(step):
                loss[at - first] = odd[what]
                stats["amax"][at - first, 0] = odd[what]
        batch = Batch(
            step=step,
            time=1.7e9 + step.astype(np.float64),
            scalar_names=("loss",),
            scalars=loss[:, None],
            scalars_present=np.ones((len(step), 1), bool),
            tensor_names=TENSORS,
            stat_row=np.arange(len(step), dtype=np.int64),
            stats=stats,
            stats_present={name: np.ones(size, bool) for name in STATS},
        )
        yield wire_safetensors.encode(batch, table, with_table=first == 0)


def send(running: Running, plan: Planted) -> None:
    """Sends all of it and waits until no more is rewritten."""
    running.client.open_run(RUN)
    lane = Lane(running.port, RUN)
    for seq, body in enumerate(bodies(plan)):
        lane.put(seq, body)
    lane.close()
    wait_for_chunks(running.data / "floatscope.db")


def spans(plan: Planted, at: int) -> list[tuple[int, int]]:
    """Spans around a step, from the whole run to itself, lopsided so that their edges cut bins."""
    found, width = [(0, plan.steps - 1)], plan.steps // 3
    while width > 1:
        first = max(at - width // 3, 0)
        found.append((first, min(first + width, plan.steps - 1)))
        width //= 5
    return [*found, (at, at)]


def check(
    port: int, plan: Planted, *, most_points: Sequence[int] = POINTS, most_columns: Sequence[int] = COLUMNS
) -> tuple[int, list[str]]:
    """How many answers were looked at, and those that lack what was planted."""
    with Reader(port) as reader:
        return _check(reader, plan, most_points, most_columns)


def _check(
    reader: Reader, plan: Planted, most_points: Sequence[int], most_columns: Sequence[int]
) -> tuple[int, list[str]]:
    asked, missing = 0, []
    for what, at in plan.at.items():
        for first, last in spans(plan, at):
            span = f"from={first}&to={last}"
            for points in most_points:
                for path, pick in (
                    (f"scalars?names=loss&{span}&points={points}", lambda got: got["series"]["loss"]),
                    (f"series?tensor={quote(TENSORS[0], safe='')}&stat=amax&{span}&points={points}", dict),
                ):
                    asked += 1
                    if not _in_series(what, at, pick(reader.json(f"/api/v1/runs/{RUN}/{path}")), plan, first):
                        missing.append(f"{what}: {path}")
            for columns in most_columns:
                path = f"heatmap?stat=amax&{span}&columns={columns}"
                asked += 1
                if not _in_heat_map(what, at, reader.json(f"/api/v1/runs/{RUN}/{path}")):
                    missing.append(f"{what}: {path}")
    return asked, missing


def _in_series(what: str, at: int, got: Mapping[str, list[Any]], plan: Planted, first: int) -> bool:
    """Whether the bin that holds the step says so, and counts it once."""
    bins = got["step"]
    k = int(np.searchsorted(np.asarray(bins), at, side="right")) - 1
    if k < 0:
        return False
    if what == "spike":
        return bool(got["max"][k] is not None and abs(got["max"][k] - SPIKE) < 1)
    return bool(got[what][k] == 1)


def _in_heat_map(what: str, at: int, got: Mapping[str, Any]) -> bool:
    row = got["tensors"].index(TENSORS[0])
    column = int(np.searchsorted(np.asarray(got["from"]), at, side="right")) - 1
    if what == "spike":
        cells = np.frombuffer(base64.b64decode(got["data"]), np.uint8).reshape(len(got["tensors"]), -1)
        beside_odd = any(r == row and c == column for r, c, _n in [*got["nan"], *got["inf"]])
        return bool(
            beside_odd or (got["hi"] is not None and got["hi"] >= SPIKE - 1 and cells[row, column] == 253)
        )
    return any(r == row and c == column and n == 1 for r, c, n in got[what])


def report(*, steps: int) -> None:
    """Sends, waits until chunks are made, asks; ends with an error if anything is missing."""
    plan = planted(steps)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        with server(data, FLOATSCOPE_DIAGNOSE="0") as running:
            began = time.time()
            send(running, plan)
            sent = time.time() - began
            began = time.time()
            asked, missing = check(running.port, plan)
            took = time.time() - began
    print(f"{steps:,} steps; a spike, a NaN and an Inf of one step each ({machine.load_average()})\n")
    print(f"  sent and in chunks after {sent:.1f} s")
    print(
        f"  answers looked at    {asked:6d}   of each span, series of {POINTS} points "
        f"and heat maps of {COLUMNS} columns"
    )
    print(f"  that hold it         {asked - len(missing):6d}   {took / asked * 1e3:.1f} ms each\n")
    if missing:
        raise SystemExit("missing in:\n" + "\n".join(missing[:20]))
