"""What was judged live is judged the same out of chunks, and exported the same."""

from __future__ import annotations

from typing import Any

import pytest

from floatscope.protocol.runinfo import RunInfo
from floatscope_server import export
from floatscope_server.app import create_app
from floatscope_server.database import Database
from floatscope_server.services import Services
from floatscope_server.settings import Settings
from floatscope_server.store import batches, chunk_batches, chunks, runs, verdicts
from floatscope_server.store.reads import Span
from floatscope_server.store.sequence import MOST_BYTES, WINDOW_BYTES, BatchSequence, share_bytes
from tests.server.compacting import Shape, Story
from tests.server.samples import as_stored, body, faulty_run, ingest, lines


def test_a_replay_out_of_chunks_says_the_same(settings: Settings, database: Database) -> None:
    services: Services = create_app(settings, database=database).state.services
    described, steps = faulty_run(160, fault_at=100)
    services.lifecycle.open("r", RunInfo.from_json(described))
    for seq in range(10):
        ingest(services, "r", seq, body(steps[seq * 16 : seq * 16 + 16]))
    with database.read() as c:
        run = runs.get(c, "r")
        live = verdicts.find(c, run.id)
    assert services.compactor.rewriter.rewrite(run.id, 0, whole=True) == 1
    with database.write() as c:
        assert len(chunks.of_rank(c, run.id, 0)) == 1
        verdicts.forget_engine(c, run.id)
        runs.change(c, run.id, {"version": run.version + 1})
    services.lifecycle.refresh("r")
    with database.read() as c:
        again = verdicts.find(c, run.id)
    assert live is not None
    assert again is not None
    assert live["findings"]
    assert again["findings"] == live["findings"]
    assert again["status"] == live["status"]
    found = export.rows(database, run.id, [0], Span(0, 999), tensor_tables=services.tensor_tables)
    assert lines(list(found)) == as_stored(steps)


def test_ranks_that_are_exported_together_share_a_window(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(sqlite_database)
    for rank in range(3):
        story.send(Shape(9), rank=rank)
    windows: list[int] = []

    class Watched(BatchSequence):
        def __init__(self, run: int, **given: Any) -> None:
            super().__init__(run, **given)
            windows.append(self._window_bytes)

    monkeypatch.setattr(export, "BatchSequence", Watched)
    found = export.rows(sqlite_database, story.run, range(3), Span(0, 99), tensor_tables=story.tables)
    assert len(list(found)) == 27
    assert len(windows) == 3
    assert sum(windows) <= WINDOW_BYTES


def test_beside_many_ranks_a_chunk_is_not_decoded_for_each_batch(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(sqlite_database)
    stats = tuple(f"s{i}" for i in range(7))
    for _ in range(6):  # 1.1 MB each, more than a 64th of the window
        story.send(Shape(512, table=60, stats=stats))
    assert story.compact() == 1
    decoded: list[int] = []
    cut = chunk_batches.cut

    def watched(*given: Any, first_seq: int, **more: Any) -> Any:
        decoded.append(first_seq)
        return cut(*given, first_seq=first_seq, **more)

    monkeypatch.setattr(chunk_batches, "cut", watched)
    sequence = BatchSequence(story.run, tensor_tables=story.tables, ranks=64)
    with sqlite_database.read() as c:
        for key in batches.keys(c, story.run):
            assert len(sequence.load(c, key)) == 512
    assert decoded == [0]


def test_all_ranks_together_hold_a_bounded_window() -> None:
    assert share_bytes(0) == share_bytes(1) == WINDOW_BYTES
    assert all(share_bytes(ranks) * ranks <= MOST_BYTES for ranks in range(1, 5000))
    assert share_bytes(64) == 8 * 1024 * 1024
