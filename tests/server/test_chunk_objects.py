"""Chunks whose numbers lie in an object store: the same numbers, and no object that nobody knows of."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from sqlalchemy import select

from floatscope_server import tables
from floatscope_server.chunk_plan import LIMITS, Limits
from floatscope_server.compaction import Compactor
from floatscope_server.database import Database
from floatscope_server.store import claims, hot, leftovers
from floatscope_server.store.kinds import HISTOGRAM, STAT
from floatscope_server.unpacking import Unpacker
from tests.server.chunk_checks import check_chunks
from tests.server.compacting import Shape, Story
from tests.server.live import wait_for

SMALL = Limits(rows=64, merged_rows=32)


class Memory:
    """An object store that fails when it is told to."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.writes_left = 10**9

    def read(self, key: str, start: int, length: int) -> bytes:
        if key not in self.kept:
            raise OSError(f"there is no {key}")
        return self.kept[key][start : start + length]

    def write(self, key: str, data: bytes) -> None:
        self.writes_left -= 1
        if self.writes_left < 0:
            raise OSError("the store is away")
        assert key not in self.kept
        self.kept[key] = data

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.kept.pop(key, None)


def known(database: Database) -> tuple[set[str], set[str]]:
    """Objects that tiles lie in, and objects that are to be deleted."""
    with database.read() as c:
        used = set(c.execute(select(tables.tile.c.object).where(tables.tile.c.object.is_not(None))).scalars())
        return used, set(c.execute(select(tables.garbage.c.object)).scalars())


def test_numbers_in_the_store(database: Database) -> None:
    store = Memory()
    story = Story(database, objects=store)
    for _ in range(3):
        story.send(Shape(9, table=5, histograms=1))
        story.rewriter(limits=SMALL).rewrite(story.run, 0, whole=True)
        story.check_batches()
    check_chunks(story, nothing_hot=True)
    used, garbage = known(database)
    assert used
    assert garbage
    assert not used & garbage
    assert used | garbage == set(store.kept)
    with database.read() as c:
        inside = select(tables.tile.c.kind).where(tables.tile.c.data.is_not(None)).distinct()
        assert not {STAT, HISTOGRAM} & set(c.execute(inside).scalars())
    store.delete(sorted(garbage))
    story.check_batches()


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_a_store_that_is_away_loses_nothing(sqlite_database: Database, writes: int) -> None:
    store = Memory()
    story = Story(sqlite_database, objects=store)
    story.send(Shape(9, table=5, histograms=1))
    store.writes_left = writes
    with pytest.raises(OSError, match="away"):
        story.compact()
    story.check_batches()
    assert set(store.kept) <= known(sqlite_database)[1]
    store.writes_left = 10**9
    story.compact()
    story.check_batches()
    check_chunks(story, nothing_hot=True)
    used, garbage = known(sqlite_database)
    assert not used & garbage
    assert set(store.kept) <= used | garbage


def test_a_rank_whose_objects_are_gone_holds_up_nobody(
    sqlite_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    class Emptied(Memory):
        def read(self, key: str, start: int, length: int) -> bytes:
            raise FileNotFoundError(key)

    store = Emptied()
    story = Story(sqlite_database, objects=store)
    story.send(Shape(9))
    story.compact()
    left = LIMITS.rows - 9  # with the chunk before they fill one
    story.send(Shape(left))
    story.send(Shape(LIMITS.rows), rank=1)
    compactor = Compactor(
        database=sqlite_database, tensor_tables=story.tables, objects=store, retry_s=(3600.0,)
    )
    compactor.wake(story.run, 0)
    compactor.start()
    try:
        wait_for(lambda: _hot_rows(story, 1) == 0, seconds=20)
        assert compactor.works()
    finally:
        compactor.stop()
    assert caplog.text.count("rank 0 of run") == 1
    assert _hot_rows(story, 0) == left


def test_a_slow_store_costs_no_claim(sqlite_database: Database) -> None:
    now = [1e9]

    class Slow(Memory):
        def write(self, key: str, data: bytes) -> None:
            super().write(key, data)
            now[0] += claims.LEASE_S - 1

    story = Story(sqlite_database, objects=Slow())
    story.send(Shape(9, table=5, histograms=1))
    unheard_s: list[float] = []

    def look() -> bool:
        with sqlite_database.read() as c:
            seen = select(tables.rank.c.compactor_seen).where(tables.rank.c.run == story.run)
            unheard_s.append(now[0] - c.execute(seen).scalar_one())
        return False

    story.rewriter(stopping=look, clock=lambda: now[0]).rewrite(story.run, 0, whole=True)
    assert now[0] == 1e9 + 3 * (claims.LEASE_S - 1)
    assert len(unheard_s) > 3
    assert max(unheard_s) < 1


def test_after_a_merge_only_the_merged_chunk_is_looked_for(database: Database) -> None:
    story = Story(database)
    for rows in (40, 9):
        story.send(Shape(rows, table=5))
        story.rewriter(limits=SMALL).rewrite(story.run, 0, whole=True)
    with database.write() as c:
        of_run = tables.chunk.c.run == story.run
        c.execute(tables.chunk.delete().where(of_run, tables.chunk.c.chunk == 0))

        def numbers(only: int | None) -> set[int]:
            found = leftovers.find(c, story.run, 0, tiles=True, most_bytes=1000, number=only)
            return {key["chunk"] for part in found for key in part.keys if "chunk" in key}

        assert numbers(None) == numbers(0) == {0}
        assert numbers(1) == set()  # it counts
        c.execute(tables.chunk.delete().where(of_run))
        assert numbers(None) == {0, 1}
        assert numbers(1) == {1}


def test_chunks_are_unpacked_to_the_same_blocks(database: Database) -> None:
    store = Memory()
    story = Story(database, objects=store)
    for shape in (
        Shape(9, table=5, histograms=1),
        Shape(0),
        Shape(40, table=2, odd=0.5),
        Shape(3, resumes=True),
    ):
        story.send(shape)
    with database.read() as c:
        before = c.execute(select(tables.block).order_by(*tables.block.primary_key.columns)).all()
    assert story.rewriter(limits=SMALL).rewrite(story.run, 0, whole=True) == 2
    unpacker = Unpacker(
        database=database, tensor_tables=story.tables, worker="u", objects=store, portion_bytes=2000
    )
    assert list(unpacker.unpack_all()) == [(story.run, 0, 2)]
    with database.read() as c:
        assert c.execute(select(tables.block).order_by(*tables.block.primary_key.columns)).all() == before
    story.check_batches()
    check_chunks(story)
    assert known(database)[0] == set()
    assert list(unpacker.unpack_all()) == []


def test_a_reader_without_the_store_is_told_so(sqlite_database: Database) -> None:
    story = Story(sqlite_database, objects=Memory())
    story.send(Shape(9))
    story.compact()
    story.objects = None
    with pytest.raises(OSError, match="no object store is set up"):
        story.check_batches()


def _hot_rows(story: Story, rank: int) -> int:
    with story.database.read() as c:
        state = hot.state(c, story.run, rank)
    assert state is not None
    return state.hot_rows
