"""Histograms of one tensor over time, against a look at every row that was sent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from floatscope_server.chunk_plan import Limits
from floatscope_server.database import Database
from floatscope_server.store import histogram_reads, series_reads
from floatscope_server.store.histogram_reads import TensorHistograms
from floatscope_server.store.raw import Source
from floatscope_server.store.stretches import Span
from tests.server.live import Client
from tests.server.samples import send
from tests.server.stored_runs import Store, named, random_batch

STATS = ("amax", "rms", "scale")
TENSOR = "t001/input"


def sent(database: Database, seed: int, *, suspects_only: float = 0.3) -> Store:
    """A run with histograms on some rows; on many of them only of other tensors. Part of it is in chunks."""
    rng = np.random.default_rng(seed)
    store = Store(database, "r", named(40), Limits(rows=256, merged_rows=128))
    last, segment = -1, 0
    for part in range(8):
        if part == 4:
            store.rewrite()
            segment, last = segment + 1, last - 30  # resumed from an earlier step
        step = last + 1 + np.arange(64)
        batch = random_batch(rng, step, list(store.tensors), every=2)
        rows = np.flatnonzero(rng.random(64) < 0.4)
        counts = rng.integers(0, 50, (len(rows), 40, 64)).astype(np.uint32)
        counts[:, :, :20] = 0
        column = batch.tensor_names.index(TENSOR)
        counts[rng.random(len(rows)) < suspects_only, column] = 0
        store.add(replace(batch, hist_row=rows, hist_log2=counts), segment=segment)
        last = int(step[-1])
    return store


def looked_up(store: Store, span: Span) -> dict[int, tuple[list[int], float | None, float | None]]:
    """Step -> counts, scale and amax of every row that counts and has the histogram."""
    found = {}
    for step, batch, row in store.counting(span):
        at = np.flatnonzero(batch.hist_row == row)
        column = batch.tensor_names.index(TENSOR)
        if len(at) and batch.hist_log2[at[0], column].any():
            counts = batch.hist_log2[at[0], column].tolist()
            found[step] = (counts, one(store, "scale", step, span), one(store, "amax", step, span))
    return found


def one(store: Store, stat: str, step: int, span: Span) -> float | None:
    steps, values = store.stat(stat, TENSOR, Span(step, step, span.segment))
    return float(values[0]) if len(steps) else None


def read(store: Store, span: Span, columns: int, tensor: str = TENSOR) -> TensorHistograms:
    with store.database.read() as c:
        seen = series_reads.view(Source(c, store.run, 0, store.tables), span, with_tensors=True)
        return histogram_reads.of_tensor(seen, tensor, columns, stored=STATS)


@pytest.mark.parametrize("seed", range(3))
def test_every_histogram_that_counts_is_found(sqlite_database: Database, seed: int) -> None:
    store = sent(sqlite_database, seed)
    for span in (Span(0, 2**40), Span(100, 330), Span(0, 2**40, 0), Span(250, 251), Span(9_000, 9_999)):
        want = looked_up(store, span)
        found = read(store, span, 10_000)
        assert found.step.tolist() == sorted(want)
        assert found.counts.tolist() == [want[at][0] for at in sorted(want)]
        for at, step in enumerate(found.step.tolist()):
            for stat, value, there in (
                (1, found.scale[at], found.has_scale[at]),
                (2, found.amax[at], found.has_amax[at]),
            ):
                wanted = want[step][stat]
                assert bool(there) == (wanted is not None)
                if wanted is not None:
                    np.testing.assert_equal(float(value), wanted)


def test_columns_are_chosen_evenly_of_those_that_have_any(sqlite_database: Database) -> None:
    store = sent(sqlite_database, 7, suspects_only=0.8)
    every = sorted(looked_up(store, Span(0, 2**40)))
    assert len(every) > 20
    found = read(store, Span(0, 2**40), 9)
    assert found.step.tolist() == [every[i * (len(every) - 1) // 8] for i in range(9)]
    assert read(store, Span(0, 2**40), 1).step.tolist() == [every[-1]]
    assert found.sampled == found.looked_at > len(every)
    assert read(store, Span(0, 2**40), 9, tensor="not/there").step.tolist() == []


def test_only_so_many_rows_are_looked_at(sqlite_database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    store = sent(sqlite_database, 8, suspects_only=0.0)
    monkeypatch.setattr(histogram_reads, "MOST_LOOKED_AT", 10)
    found = read(store, Span(0, 2**40), 500)
    assert (len(found.step), found.looked_at) == (10, 10)
    assert found.sampled > 100


def test_the_answer_is_cut_to_the_powers_that_have_values(client: Client) -> None:
    name = "weird <b>&/../\u00e4 100%/input"
    client.open_run("r", tensors={name: {"format": "e4m3"}})
    counts = [0] * 64
    counts[38], counts[41] = 7, 5
    steps = [
        {"step": 0, "loss": 1.0, "tensors": {name: {"amax": 3.0, "scale": 64.0, "hist_log2": counts}}},
        {"step": 1, "loss": 1.0, "tensors": {name: {"amax": "NaN", "hist_log2": counts}}},
        {"step": 2, "loss": 1.0, "tensors": {name: {"amax": 1.0}}},
    ]
    send(client, "r", steps)
    query = "tensor=weird%20%3Cb%3E%26%2F..%2F%C3%A4%20100%25%2Finput"
    found = client.get(f"/api/v1/runs/r/histogram?{query}").json
    assert (found["tensor"], found["rank"], found["sampled"], found["looked_at"]) == (name, 0, 2, 2)
    assert (found["step"], found["lowest"], found["counts"]) == ([0, 1], [-2, -2], [[7, 0, 0, 5]] * 2)
    assert (found["scale"], found["amax"]) == ([64.0, None], [3.0, "NaN"])
    etag = client.get(f"/api/v1/runs/r/histogram?{query}").headers["etag"]
    again = client.call("GET", f"/api/v1/runs/r/histogram?{query}", headers={"If-None-Match": etag})
    assert again.status == 304
    assert client.get("/api/v1/runs/r/histogram?tensor=x&columns=501").status == 422
    assert client.get("/api/v1/runs/r/histogram").status == 422
    assert client.get("/api/v1/runs/gone/histogram?tensor=x").status == 404
