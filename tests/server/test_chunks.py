"""Whatever was sent and whenever it was rewritten: every batch comes back bit for bit, and levels say what a
look at every value says.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import update

from floatscope_server import tables
from floatscope_server.chunk_plan import Limits
from floatscope_server.database import Database
from floatscope_server.store import batches, kinds
from tests.server.chunk_checks import check_chunks
from tests.server.compacting import Shape, Story, rows_of

SMALL = Limits(rows=96, merged_rows=48, cells=3000, series_cells=1000, histogram_cells=30_000, hot_batches=12)

SHAPES = st.builds(
    Shape,
    rows=st.sampled_from([0, 1, 1, 2, 7, 31, 64, 96, 130]),
    table=st.sampled_from([0, 1, 1, 2, 5]),
    every=st.sampled_from([1, 1, 3, 50]),
    gap=st.sampled_from([1, 1, 2, 40]),
    resumes=st.sampled_from([False, False, False, True]),
    stats=st.sampled_from([(), ("amax",), ("amax", "scale"), ("amax", "rms", "sat", "scale")]),
    scalars=st.sampled_from([(), ("loss",), ("lr", "loss"), ("grad_norm", "loss")]),
    histograms=st.sampled_from([0, 0, 1, 3]),
    present=st.sampled_from([1.0, 1.0, 0.7, 0.0]),
    odd=st.sampled_from([0.0, 0.3, 1.0]),
)
ACTS = st.lists(st.one_of(SHAPES, st.sampled_from(["compact", "compact whole"])), min_size=1, max_size=14)
Stories = Callable[[int], Story]


def tell(story: Story, acts: list[Shape | str], *, ranks: int) -> None:
    rewriter = story.rewriter(limits=SMALL)
    for number, act in enumerate(acts):
        rank = number % ranks
        if isinstance(act, Shape):
            story.send(act, rank=rank)
        else:
            rewriter.rewrite(story.run, rank, whole=act == "compact whole")
    story.check_batches(window_bytes=2000)
    check_chunks(story, ranks=ranks)
    for rank in range(ranks):
        story.check_frame(rank)
        rewriter.rewrite(story.run, rank, whole=True)
    story.check_batches()
    check_chunks(story, ranks=ranks, nothing_hot=True)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(acts=ACTS, ranks=st.integers(1, 2), seed=st.integers(0, 99))
def test_any_batches_under_any_schedule(
    sqlite_database: Database, acts: list[Shape | str], ranks: int, seed: int
) -> None:
    tell(Story(sqlite_database, seed=seed), acts, ranks=ranks)


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(acts=ACTS, seed=st.integers(0, 99))
def test_any_batches_on_either_database(database: Database, acts: list[Shape | str], seed: int) -> None:
    tell(Story(database, seed=seed), acts, ranks=1)


def test_the_time_of_a_step_is_found_in_a_chunk_too(sqlite_database: Database) -> None:
    story = Story(sqlite_database)
    for shape in (Shape(40), Shape(9, resumes=True), Shape(0), Shape(30)):
        story.send(shape)

    def times() -> list[float | None]:
        with sqlite_database.read() as c:
            return [batches.time_of(c, story.run, step=step, rank=0) for step in range(90)]

    before = times()
    assert story.compact() == 2
    assert times() == before
    assert None in before
    assert len(set(before)) > 40
    with sqlite_database.write() as c:
        c.execute(update(tables.tile).where(tables.tile.c.kind == kinds.ROWS).values(data=b"not a tile"))
    assert set(times()) == {None, 1.0}, "when it arrived, where its sender's time cannot be read"


LONG = {
    "full batches": [Shape(4096)] * 2,
    "does not divide": [Shape(1000, every=4)] * 5,
    "alternating tensors": [Shape(700, table=table, every=9) for table in (2, 5, 2, 7, 0, 3)],
    "statistics seldom": [Shape(512, every=100, histograms=2)] * 9,
    "nothing finite": [Shape(300, odd=1.0)] * 2,
}


@pytest.mark.parametrize("case", LONG)
def test_the_usual_limits(sqlite_database: Database, case: str) -> None:
    story = Story(sqlite_database)
    for shape in LONG[case]:
        story.send(shape)
    full = rows_of(LONG[case]) >= 4096
    assert (story.compact(whole=False) > 0) == full
    story.compact()
    story.check_batches()
    check_chunks(story, nothing_hot=True)


def test_key_figures_of_evenly_spaced_batches(database: Database) -> None:
    story = Story(database)
    for seq in range(23):
        story.send(Shape(0 if seq in (5, 22) else 1))
    step = [batch.lost[0] if batch.lost else int(batch.step[0]) for batch, _segment in story.sent.values()]
    with database.read() as c:
        for points, seqs in (
            (4, [0, 6, 12, 18, 21]),
            (5, [0, 10, 15, 20, 21]),
            (50, [*range(5), *range(6, 22)]),
        ):
            found = batches.glances(c, story.run, 0, points=points)
            assert [first for first, _last, _numbers in found] == [step[seq] for seq in seqs]
        assert list(batches.glances(c, story.run, 1, points=4)) == []
