"""Rewriting to chunks while batches come, processes die and others take over."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Connection, select

from floatscope_server import tables
from floatscope_server.chunk_plan import Content, HotBatch, Limits, plans
from floatscope_server.chunk_writer import Interrupted
from floatscope_server.compaction import Compactor, cells_a_row, is_due
from floatscope_server.database import Database
from floatscope_server.rewriting import Rewriter
from floatscope_server.store import chunks, claims, hot, removal
from floatscope_server.store.tensor_tables import TensorTables
from tests.server.chunk_checks import check_chunks
from tests.server.compacting import Shape, Story, make
from tests.server.live import wait_for

SMALL = Limits(rows=64, merged_rows=32, hot_batches=10, portion_bytes=9_000)
LATER_S = 2 * claims.LEASE_S
TALE = (
    *(Shape(16, table=2, histograms=1),) * 3,
    Shape(0),
    Shape(40, table=3, odd=0.2),
    Shape(5, resumes=True),
    Shape(11, table=2, stats=("rms",)),
)


class Stopped(Exception):
    """What stands for a kill."""


class Mortal:
    """A database whose n-th write transaction does not come through, or is the last one that does."""

    def __init__(self, database: Database, *, dies_at: int, after_commit: bool) -> None:
        self._database = database
        self._left = dies_at
        self._after = after_commit
        self.read = database.read

    @contextmanager
    def write(self) -> Iterator[Connection]:
        self._left -= 1
        if self._left < 0:
            raise Stopped
        with self._database.write() as c:
            yield c
            if self._left == 0 and not self._after:
                raise Stopped
        if self._left == 0:
            raise Stopped


def tale(database: Database, shapes: Sequence[Shape] = TALE) -> Story:
    story = Story(database)
    for shape in shapes:
        story.send(shape)
    return story


def survives(rewriter: Rewriter, run: int) -> bool:
    try:
        rewriter.rewrite(run, 0, whole=True)
    except Stopped:
        return False
    return True


@pytest.mark.parametrize("after_commit", [False, True])
def test_a_death_between_any_two_transactions(database: Database, after_commit: bool) -> None:
    dies_at, step = 1, 1 if database.dialect == "sqlite" else 3  # by the same code, and slower
    while True:
        story = tale(database, TALE[:1])
        story.rewriter(limits=SMALL).rewrite(story.run, 0, whole=True)
        for shape in TALE[1:]:
            story.send(shape)
        mortal: Any = Mortal(database, dies_at=dies_at, after_commit=after_commit)
        dying = story.rewriter("dying", limits=SMALL)
        dying._database = mortal
        if survives(dying, story.run):
            break
        story.check_batches()
        if dies_at > 1:  # it had the claim
            assert story.rewriter("too early", limits=SMALL).rewrite(story.run, 0) == 0
        if dies_at % 2:
            story.send(Shape(2, table=5))
        heir = story.rewriter("heir", limits=SMALL, clock=lambda: time.time() + LATER_S)
        heir.rewrite(story.run, 0, whole=True)
        story.check_batches()
        check_chunks(story, nothing_hot=True)
        dies_at += step
    assert dies_at > 12


def test_whoever_is_overtaken_writes_nothing_more(database: Database) -> None:
    story = tale(database)
    heir = story.rewriter("heir", limits=SMALL, clock=lambda: time.time() + LATER_S)
    taken_over: list[int] = []

    def take_over() -> bool:
        if not taken_over:
            taken_over.append(heir.rewrite(story.run, 0, whole=True))
        return False

    with pytest.raises(Interrupted):
        story.rewriter("slow", limits=SMALL, stopping=take_over).rewrite(story.run, 0, whole=True)
    assert taken_over[0] >= 2
    story.check_batches()
    check_chunks(story, nothing_hot=True)


def test_batches_come_while_others_are_rewritten(database: Database) -> None:
    story = tale(database)
    faults: list[Exception] = []
    done = threading.Event()

    def rewrite(worker: str) -> None:
        rewriter = story.rewriter(worker, limits=SMALL)
        try:
            while not done.is_set():
                rewriter.rewrite(story.run, 0)
        except Exception as error:
            faults.append(error)

    threads = [threading.Thread(target=rewrite, args=(f"w{i}",)) for i in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(40):
        story.send(Shape(9, table=2))
    story.check_batches()
    done.set()
    for thread in threads:
        thread.join(30)
    assert faults == []
    with database.read() as c:
        assert len(chunks.of_rank(c, story.run, 0)) >= 3
    story.check_batches()
    check_chunks(story)


def test_a_small_chunk_is_taken_into_the_next(sqlite_database: Database) -> None:
    story = Story(sqlite_database)
    sizes = []
    for _ in range(12):
        story.send(Shape(8))
        story.rewriter(limits=SMALL).rewrite(story.run, 0, whole=True)
        with sqlite_database.read() as c:
            sizes.append([chunk.rows for chunk in chunks.of_rank(c, story.run, 0)])
    assert sizes[3] == [32]
    assert sizes[4] == [40]
    assert sizes[5] == [40, 8]
    assert sizes[-1] == [40, 40, 16]
    story.check_batches()
    check_chunks(story, nothing_hot=True)


def test_the_thread_rewrites_what_is_due_and_what_ended(database: Database) -> None:
    story = tale(database, [Shape(2048)] * 2 + [Shape(7)])
    compactor = Compactor(database=database, tensor_tables=story.tables)
    compactor.start()
    try:
        wait_for(lambda: _at_rest(story, hot_rows=7), seconds=20)
        with database.write() as c:
            name = c.execute(
                tables.run.update()
                .where(tables.run.c.id == story.run)
                .values(status="finished")
                .returning(tables.run.c.run_id)
            ).scalar_one()
        compactor.ended(name)
        wait_for(lambda: _at_rest(story, hot_rows=0), seconds=20)
    finally:
        compactor.stop()
    assert not compactor.alive()
    story.check_batches()


def test_a_stop_hands_over_to_the_next_process(sqlite_database: Database) -> None:
    story = tale(sqlite_database)
    asked = iter([False, False, True, True, True])
    stopped = story.rewriter("stopped", limits=SMALL, stopping=lambda: next(asked))
    with pytest.raises(Interrupted):
        stopped.rewrite(story.run, 0, whole=True)
    with sqlite_database.write() as c:
        claims.hand_over(c, "stopped")
    story.rewriter("next", limits=SMALL).rewrite(story.run, 0, whole=True)
    check_chunks(story, nothing_hot=True)


def test_a_removed_run_is_left_alone(database: Database) -> None:
    story = tale(database)

    def remove() -> bool:
        with database.write() as c:
            removal.mark(c, story.run, "x", now=1.0)
        return False

    with pytest.raises(Interrupted):
        story.rewriter(stopping=remove).rewrite(story.run, 0, whole=True)
    assert story.rewriter().rewrite(story.run, 0, whole=True) == 0
    with database.write() as c:
        while removal.step(c, story.run, rows=100, now=1.0):
            pass
    with database.read() as c:
        assert c.execute(select(tables.tile.c.run).where(tables.tile.c.run == story.run)).first() is None


def test_a_database_that_is_away_is_tried_again(sqlite_database: Database) -> None:
    story = tale(sqlite_database, [Shape(4096)])
    fails = 3

    @contextmanager
    def read() -> Iterator[Connection]:
        nonlocal fails
        fails -= 1
        if fails >= 0:
            raise OSError("away")
        with sqlite_database.read() as c:
            yield c

    away: Any = Mortal(sqlite_database, dies_at=10**9, after_commit=True)
    away.read = read
    compactor = Compactor(database=away, tensor_tables=story.tables, retry_s=(0.01,))
    compactor.start()
    try:
        wait_for(lambda: _at_rest(story, hot_rows=0), seconds=20)
    finally:
        compactor.stop()
    check_chunks(story)


def test_a_damaged_rank_holds_up_nobody(sqlite_database: Database, caplog: pytest.LogCaptureFixture) -> None:
    broken, whole = (tale(sqlite_database, [Shape(4096)]) for _ in range(2))
    with sqlite_database.write() as c:
        block = tables.block
        of_run = (block.c.run == broken.run) & (block.c.name == "amax")
        c.execute(block.update().where(of_run).values(data=b"\x01\x09 not a block"))
    compactor = Compactor(database=sqlite_database, tensor_tables=TensorTables())
    compactor.start()
    try:
        wait_for(lambda: _at_rest(whole, hot_rows=0), seconds=20)
        compactor.wake(broken.run, 0)
        wait_for(lambda: "cannot be rewritten" in caplog.text, seconds=20)
    finally:
        compactor.stop()
    assert caplog.text.count("cannot be rewritten") == 1
    whole.check_batches()
    with sqlite_database.read() as c:
        assert chunks.of_rank(c, broken.run, 0) == []


def test_after_a_start_ranks_that_are_due_by_their_values_are_found(database: Database) -> None:
    story = Story(database)
    stats = tuple(f"s{i}" for i in range(10))
    for shape in (Shape(9, table=1999, stats=stats), Shape(900, table=1999, stats=stats, every=900)):
        story.send(shape)  # 18 million values of statistics, were they in every row
    story.send(Shape(900), rank=1)
    compactor = Compactor(database=database, tensor_tables=TensorTables())
    compactor._look()
    assert list(compactor._wanted) == [(story.run, 0)]
    compactor._wanted.clear()
    compactor._look()
    assert list(compactor._wanted) == []


def test_when_a_chunk_is_due() -> None:
    assert not is_due(hot_rows=4095, hot_batches=511, cells_a_row=4000)
    assert is_due(hot_rows=4096, hot_batches=2, cells_a_row=0)
    assert is_due(hot_rows=512, hot_batches=512, cells_a_row=0)
    assert is_due(hot_rows=64, hot_batches=1, cells_a_row=600_000)


def test_rows_without_statistics_do_not_make_a_chunk_due() -> None:
    rng = np.random.default_rng(0)
    full, rare, none = (
        make(shape, 0, rng) for shape in (Shape(200), Shape(200, every=100), Shape(200, table=0))
    )
    assert [cells_a_row(batch) for batch in (full, rare, none)] == [4.0, 0.04, 0.0]
    assert cells_a_row(make(Shape(0), 0, rng)) == 0.0
    wide = 1e6 * cells_a_row(rare) / cells_a_row(full)
    assert not is_due(hot_rows=1600, hot_batches=25, cells_a_row=wide)
    assert is_due(hot_rows=1700, hot_batches=27, cells_a_row=wide)


def test_many_tensors_make_short_chunks() -> None:
    tensors = frozenset(map(str, range(100_000)))
    stats = frozenset(("amax", "rms", "scale"))
    content = Content(16, 16, 0, tensors, stats, frozenset())
    batches = [HotBatch(seq, 0, 1, content) for seq in range(9)]
    found = list(plans(batches, None, whole=False, limits=Limits()))
    assert [len(plan.batches) for plan in found] == [2, 2, 2, 2]
    alone = [HotBatch(0, 0, 1, Content(4096, 4096, 0, tensors, stats, frozenset()))]
    assert len(list(plans(alone, None, whole=True, limits=Limits()))) == 1


def _at_rest(story: Story, *, hot_rows: int) -> bool:
    with story.database.read() as c:
        state = hot.state(c, story.run, 0)
    assert state is not None
    return state.hot_rows == hot_rows and not state.claimed
