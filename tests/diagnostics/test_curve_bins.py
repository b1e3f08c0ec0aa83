"""The summary of a series: exact while short, bounded for ever, the same however the rows came."""

from __future__ import annotations

import time
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from floatscope.protocol.batch import Batch
from floatscope_diagnostics.curve_shapes.bins import NEVER, Curve
from floatscope_diagnostics.curve_shapes.book import DETAILED_BINS, MAX_OTHERS, MAX_SEGMENTS, CurveBook
from floatscope_diagnostics.state_codec import pack, unpack

Float64 = NDArray[np.float64]


def batch(step: NDArray[np.int64], **columns: Float64) -> Batch:
    """All columns present but where they are -1."""
    values = np.stack(list(columns.values()), axis=1)
    here = values != -1.0
    return Batch(step, step.astype(np.float64), tuple(columns), np.where(here, values, 0.0), here)


def equal(a: Curve, b: Curve) -> bool:
    return all(
        np.array_equal(getattr(a, f.name), getattr(b, f.name), equal_nan=f.name not in ("name",))
        if isinstance(getattr(a, f.name), np.ndarray)
        else getattr(a, f.name) == getattr(b, f.name)
        for f in fields(Curve)
    )


def test_a_short_series_is_kept_point_by_point() -> None:
    step = np.arange(0, 50, 10, dtype=np.int64)
    book = CurveBook()
    book.feed(batch(step, loss=np.array([3.0, np.nan, 2.5, 2.5, np.inf])), rank=0)
    curve = book.lives()[0].curves["loss"]
    assert curve.width == 1
    assert curve.first_step.tolist() == [0, 10, 20, 30, 40]
    assert curve.nan.tolist() == [0, 1, 0, 0, 0]
    assert curve.inf.tolist() == [0, 0, 0, 0, 1]
    assert curve.same.tolist() == [0, 0, 0, 1, 0]
    assert curve.rough.tolist() == [0, 0, 0.5, 0, 0]
    assert curve.bad_step.tolist() == [NEVER, 10, NEVER, NEVER, 40]


@pytest.mark.parametrize("rows", [DETAILED_BINS, DETAILED_BINS + 1, 5000, 123_457])
def test_a_long_series_keeps_its_sums_and_extremes(rows: int) -> None:
    values = np.random.default_rng(3).normal(size=rows).astype(np.float32).astype(np.float64)
    book = CurveBook()
    book.feed(batch(np.arange(rows, dtype=np.int64), loss=values), rank=0)
    curve = book.lives()[0].curves["loss"]
    assert len(curve) <= DETAILED_BINS
    assert curve.points.sum() == rows
    assert curve.total.sum() == pytest.approx(values.sum(), abs=1e-9)
    assert curve.rough.sum() == pytest.approx(np.abs(np.diff(values)).sum(), rel=1e-9)
    assert curve.low_step[curve.low.argmin()] == values.argmin()
    assert curve.high_step[curve.high.argmax()] == values.argmax()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 900), min_size=1, max_size=12), st.integers(0, 3), st.booleans())
def test_any_chunking_and_saving_give_the_same_bins(sizes: list[int], seed: int, save: bool) -> None:
    rng = np.random.default_rng(seed)
    rows = 6000
    loss = rng.lognormal(size=rows)
    loss[rng.random(rows) < 0.01] = np.nan
    held = np.where(rng.random(rows) < 0.05, rng.normal(size=rows), -1.0)
    step = np.arange(rows, dtype=np.int64)
    step[4000:] -= 500  # a resume
    whole, parts = CurveBook(), CurveBook()
    whole.feed(batch(step, loss=loss, eval_loss=held), rank=0)
    at, k = 0, 0
    while at < rows:
        size = sizes[k % len(sizes)]
        parts.feed(
            batch(step[at : at + size], loss=loss[at : at + size], eval_loss=held[at : at + size]), rank=0
        )
        if save:
            parts = CurveBook.load(unpack(pack(parts.state())))
        at, k = at + size, k + 1
    ours, theirs = parts.lives(), whole.lives()
    assert [s.rows for s in ours] == [s.rows for s in theirs] == [4000, 2000]
    for a, b in zip(ours, theirs, strict=True):
        assert list(a.curves) == list(b.curves)
        assert all(equal(a.curves[n], b.curves[n]) for n in a.curves)


def test_a_lower_rank_replaces_a_higher_one() -> None:
    step = np.arange(10, dtype=np.int64)
    book = CurveBook()
    book.feed(batch(step, loss=np.full(10, 2.0)), rank=3)
    book.feed(batch(step, loss=np.full(10, 1.0)), rank=0)
    book.feed(batch(step + 10, loss=np.full(10, 2.0)), rank=3)
    life = book.lives()[0]
    assert book.rank == 0
    assert life.rows == 10
    assert life.curves["loss"].high.max() == 1.0


def test_restarts_and_names_without_end_are_bounded() -> None:
    book = CurveBook()
    for turn in range(60):
        columns = {f"extra_{turn}_{k}": np.ones(3) for k in range(90)}
        book.feed(batch(np.arange(3, dtype=np.int64), loss=np.ones(3), **columns), rank=0)
    lives = book.lives()
    assert len(lives) == MAX_SEGMENTS
    assert all(len(s.curves) == MAX_OTHERS + 1 for s in lives)
    assert book.seam_count == 59


@pytest.mark.parametrize("size", [64, 100_000])
def test_a_million_rows_cost_a_fraction_of_a_second(size: int) -> None:
    rows = 1_000_000
    step = np.arange(rows, dtype=np.int64)
    loss = np.random.default_rng(0).normal(size=rows) + 2.0
    batches = [batch(step[a : a + size], loss=loss[a : a + size]) for a in range(0, rows, size)]
    best = np.inf
    for _ in range(3):
        book = CurveBook()
        begin = time.process_time()
        for b in batches:
            book.feed(b, rank=0)
        book.lives()
        best = min(best, time.process_time() - begin)
    assert best < 0.5  # 0.1 on a machine of its own
    assert len(pack(book.state())) < 150_000
