"""Diagnosis of what lies in chunks: read a little at a time, and while the object store does not give it."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection, select

from floatscope_server import tables
from floatscope_server.database import Database
from floatscope_server.diagnosis import Diagnosis
from floatscope_server.errors import Unreachable
from floatscope_server.store import batches, runs
from floatscope_server.store.runs import RunRecord
from tests.server.compacting import Shape, Story
from tests.server.samples import Scripted
from tests.server.test_chunk_objects import Memory


class Gone(Memory):
    """A store that answers and does not have what it is asked for."""

    def read(self, key: str, start: int, length: int) -> bytes:
        raise FileNotFoundError(f"there is no {key}")


def run_of(c: Connection, story: Story) -> RunRecord:
    return runs.get(
        c, c.execute(select(tables.run.c.run_id).where(tables.run.c.id == story.run)).scalar_one()
    )


def told(story: Story, store: Memory) -> Diagnosis:
    return Diagnosis(engines=Scripted(lambda _last: []), tensor_tables=story.tables, objects=store)


def test_a_back_test_asks_for_no_more_batches_than_it_feeds(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(sqlite_database)
    for _ in range(9):
        story.send(Shape(3))
    story.send(Shape(0))
    asked: list[int] = []
    keys = batches.keys

    def counted(*args: Any, **more: Any) -> list[batches.BatchKey]:
        found = keys(*args, **more)
        asked.append(len(found))
        return found

    monkeypatch.setattr(batches, "keys", counted)
    diagnosis = told(story, Memory())
    with sqlite_database.read() as c:
        stored = diagnosis.stored(c, run_of(c, story))
        assert diagnosis.rows_behind(c, stored) == 27
        rounds = 1
        while diagnosis.catch_up(c, stored, most=2):
            rounds += 1
        assert stored.live.arrivals == 10
        assert diagnosis.rows_behind(c, stored) == 0
    assert rounds == 5
    assert max(asked) <= 3


def test_a_run_does_not_end_unjudged_while_the_store_is_away(sqlite_database: Database) -> None:
    store = Memory()
    story = Story(sqlite_database, objects=store)
    story.send(Shape(9))
    story.compact()
    kept, store.kept = store.kept, {}
    diagnosis = told(story, store)
    with sqlite_database.read() as c:
        run = run_of(c, story)
        waits = diagnosis.refresh(c, run)
        assert (waits.verdict, waits.judged, waits.error) == (None, True, None)
        with pytest.raises(Unreachable, match="object store"):
            diagnosis.finish(c, run, status="finished", reason=None)
        store.kept = kept
        ended = diagnosis.finish(c, run, status="finished", reason=None)
    assert ended.verdict is not None
    assert ended.saved is not None


def test_what_the_store_has_lost_is_told(sqlite_database: Database) -> None:
    story = Story(sqlite_database, objects=Memory())
    story.send(Shape(9))
    story.compact()
    diagnosis = told(story, Gone())
    with sqlite_database.read() as c:
        ended = diagnosis.finish(c, run_of(c, story), status="finished", reason=None)
    assert ended.judged
    assert ended.error is not None
    assert ended.error.startswith("FileNotFoundError: there is no")
