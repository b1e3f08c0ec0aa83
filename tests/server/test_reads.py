"""What is read at any zoom is what a look at every row says, however the rows are stored."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from floatscope.protocol.batch import Float64, Int64
from floatscope_server.chunk_plan import Limits
from floatscope_server.database import Database
from floatscope_server.derived import DERIVED
from floatscope_server.levels import Level
from floatscope_server.reduce import HeatMap, bin_width
from floatscope_server.store import heat_reads, series_reads
from floatscope_server.store.raw import Source
from floatscope_server.store.stretches import Span
from tests.server.stored_runs import Store, named, random_batch

STATS = ("amax", "rms", "scale")
ALL = Span(0, 2**40)
SMALL = Limits(rows=256, merged_rows=128)  # so that short runs have several chunks
_numbers = itertools.count()


def scalar(store: Store, name: str, span: Span, points: int, rank: int = 0) -> Level:
    with store.database.read() as c:
        seen = series_reads.view(Source(c, store.run, rank, store.tables), span)
        return series_reads.scalars(seen, [name], points)[name]


def series(store: Store, stat: str, tensor: str, span: Span, points: int) -> Level:
    with store.database.read() as c:
        seen = series_reads.view(Source(c, store.run, 0, store.tables), span, with_tensors=True)
        return series_reads.series(seen, stat, tensor, points, stored=STATS, tensors=store.tensors)


def check(level: Level, step: Int64, value: Float64, points: int) -> None:
    """The level has every value once, in at most ``points`` bins, or each value by itself."""
    number = step // level.width
    assert level.bins.tolist() == sorted(set(number.tolist()))
    assert len(level.bins) <= points
    assert level.width == 1 or len(step) > points
    assert level.mean is not None
    assert level.last is not None
    for b, bin_number in enumerate(level.bins):
        inside = value[number == bin_number]
        finite = inside[np.isfinite(inside)]
        assert (level.count[0, b], level.nan[0, b]) == (len(inside), np.isnan(inside).sum())
        assert level.inf[0, b] == np.isinf(inside).sum()
        if len(finite):
            found = (level.minimum[0, b], level.maximum[0, b], level.last[0, b])
            assert found == (finite.min(), finite.max(), finite[-1])
            np.testing.assert_allclose(level.mean[0, b], finite.mean(), rtol=1e-6)
        else:
            assert np.isnan([level.minimum[0, b], level.maximum[0, b], level.last[0, b]]).all()


def heat_of(store: Store, stat: str, span: Span, columns: int) -> HeatMap:
    with store.database.read() as c:
        seen = series_reads.view(Source(c, store.run, 0, store.tables), span, with_tensors=True)
        heat = HeatMap(stat, sorted(heat_reads.tensor_names(seen)), span.first, span.last, columns)
        heat_reads.fill(seen, heat, stored=STATS, tensors=store.tensors)
        return heat


def check_heat(store: Store, heat: HeatMap, span: Span) -> None:
    worst, nan, inf = heat.cells
    for row, tensor in enumerate(heat.tensors):
        step, value = store.stat(heat.stat, tensor, span)
        column = step // heat.width - span.first // heat.width
        for at in range(worst.shape[1]):
            inside = value[column == at]
            finite = inside[np.isfinite(inside)]
            assert (nan[row, at], inf[row, at]) == (np.isnan(inside).sum(), np.isinf(inside).sum())
            if not len(finite):
                assert math.isnan(worst[row, at])
            else:
                assert worst[row, at] == (finite.min() if heat.stat == "headroom_log2" else finite.max())


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, int, int, int]]:
    """What happens to a run: (what, rows or steps, distance of steps, how far back or ahead)."""
    rows = st.sampled_from([150, 64, 1, 16, 150])
    distance = st.sampled_from([1, 1, 1, 2, 10, 1000])
    send = st.tuples(st.just("send"), rows, distance, st.sampled_from([1, 1, 1, 5]))
    back = st.tuples(st.just("back"), rows, distance, st.integers(1, 400))
    lose = st.tuples(st.just("lose"), st.integers(1, 50), st.just(1), st.just(1))
    chunk = st.tuples(st.sampled_from(["chunk", "chunk whole"]), st.just(0), st.just(1), st.just(1))
    return draw(
        st.lists(st.one_of(send, send, send, send, back, lose, chunk, chunk), min_size=1, max_size=14)
    )


def made(database: Database, history: Sequence[tuple[str, int, int, int]], seed: int) -> Store:
    rng = np.random.default_rng(seed)
    tensors = named(int(rng.choice([1, 3, 40, 140])))
    store = Store(database, f"r{next(_numbers)}", tensors, SMALL)
    last, segment = int(rng.choice([-1, 0, 99, 10_000])), 0
    for what, rows, distance, far in history:
        if what.startswith("chunk"):
            store.rewrite(whole=what == "chunk whole")
        elif what == "lose":
            store.lose(last + 1, last + rows, segment=segment)
        else:
            if what == "back" and last >= 0:
                segment, last = segment + 1, max(last - far, -1)
                far = 1
            step = last + far + distance * np.arange(rows)
            if rng.random() < 0.2:
                step = np.unique(last + far + rng.integers(0, 3 * rows, rows))
            names = [name for name in tensors if rng.random() < rng.choice([1.0, 0.7])]
            every = int(rng.choice([1, 1, 10]))
            missing = float(rng.choice([0.0, 0.3, 0.98]))
            store.add(random_batch(rng, step, names, every=every, missing=missing), segment=segment)
            last = int(step[-1])
    return store


def compare(database: Database, history: Sequence[tuple[str, int, int, int]], seed: int) -> None:
    store = made(database, history, seed)
    rng = np.random.default_rng(seed)
    steps = [step for one in store.stored for step in one.batch.step.tolist()] or [0]
    for zoom in range(8):
        ends = np.maximum(np.sort(rng.choice(steps, 2)) + rng.integers(-3, 4, 2), 0)
        segment = [None, None, None, 0, 1][int(rng.integers(5))]
        span = ALL if zoom == 0 else Span(int(ends.min()), int(ends.max()), segment)
        points = int(rng.choice([1, 2, 3, 5, 7, 50, 900]))
        tensor = str(rng.choice(list(store.tensors)))
        stat = str(rng.choice([*STATS, *DERIVED]))
        check(scalar(store, "loss", span, points), *store.scalar("loss", span), points)
        check(scalar(store, "lr", span, points), *store.scalar("lr", span), points)
        check(series(store, stat, tensor, span, points), *store.stat(stat, tensor, span), points)
    check_heat(store, heat_of(store, stat, span, 12), span)


@given(history=histories(), seed=st.integers(0, 2**32 - 1))
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_every_zoom_says_what_every_row_says(
    sqlite_database: Database, history: list[tuple[str, int, int, int]], seed: int
) -> None:
    compare(sqlite_database, history, seed)


@pytest.mark.parametrize("seed", range(2))
def test_either_database_says_the_same(database: Database, seed: int) -> None:
    history = [
        *(("send", 64, 1, 1), ("send", 150, 1, 1), ("chunk", 0, 1, 1), ("send", 64, 10, 1)),
        *(("chunk whole", 0, 1, 1), ("lose", 20, 1, 1), ("back", 150, 1, 90), ("chunk", 0, 1, 1)),
        *(("back", 64, 2, 60), ("send", 40, 1, 5)),
    ]
    compare(database, history, seed)


def test_bins_stay_where_they_are() -> None:
    assert [bin_width(0, last, 4) for last in (3, 4, 7, 8, 31)] == [1, 2, 2, 4, 8]
    assert bin_width(5, 2**53, 1) == 2**54
