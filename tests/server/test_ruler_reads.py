"""The statistics of one step are the same from batches, from chunks, and from what is remembered of these."""

from __future__ import annotations

import numpy as np
import pytest
from sqlalchemy import Connection

from floatscope_server.chunk_plan import Limits
from floatscope_server.database import Database
from floatscope_server.store import ruler_reads, series_reads, tiles
from floatscope_server.store.raw import Source
from floatscope_server.store.stretches import Span
from floatscope_server.store.warm import Warm
from tests.server.stored_runs import Store, named, random_batch

STATS = ("amax", "rms", "scale")
TENSORS = 40
KEPT = 24


@pytest.fixture
def store(database: Database) -> Store:
    """600 steps; every third of a batch has statistics. Most are in chunks, the last ones in batches."""
    rng = np.random.default_rng(3)
    found = Store(database, "r", named(TENSORS), Limits(rows=256, merged_rows=128))
    for first in range(0, 600, 100):
        found.add(random_batch(rng, np.arange(first, first + 100), list(found.tensors), every=3))
        if first == 400:
            assert found.rewrite() > 0
    return found


def shown(store: Store, at: int, warm: Warm) -> ruler_reads.Frame | None:
    with store.database.read() as c:
        source = Source(c, store.run, 0, store.tables, None, warm)
        seen = series_reads.view(source, Span(0, at), with_tensors=True)
        return ruler_reads.frame(seen, STATS, key="amax")


def test_a_scrubber_sees_every_step_as_it_was(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ruler_reads, "KEPT_BYTES", KEPT * ruler_reads.BYTES_A_VALUE * TENSORS)
    warm = Warm()
    measured = np.concatenate([one.batch.step[one.batch.stat_row] for one in store.stored])
    for at in (0, 1, 2, 130, 131, 260, 3, 128, 192, 299, 450, 599, 580, 64):
        found = shown(store, at, warm)
        assert found is not None
        assert found.step == measured[measured <= at].max()
        for stat in STATS:
            for place, name in enumerate(found.names):
                _step, value = store.stat(stat, name, Span(found.step, found.step))
                assert found.present(stat)[place] == (len(value) == 1)
                if len(value):
                    np.testing.assert_equal(found.values(stat)[place], np.float32(value[0]))


def test_scrubbing_from_column_to_column_reads_a_chunk_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ruler_reads, "KEPT_BYTES", KEPT * ruler_reads.BYTES_A_VALUE * TENSORS)
    warm, read = Warm(), []
    whole = tiles.stats

    def noted(c: Connection, run: int, rank: int, names: list[str], *args: object, **more: object) -> object:
        read.extend(names)
        return whole(c, run, rank, names, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(tiles, "stats", noted)
    shown(store, 128, warm)
    assert sorted(set(read)) == sorted(STATS)
    read.clear()
    for at in (160, 192, 130, 127, 96, 64):
        assert shown(store, at, warm) is not None
    assert read == []


@pytest.mark.parametrize("most", [0, 1, 2, 7, 24, 199, 200, 1000])
def test_what_is_kept_has_the_step_asked_for_and_stays_small(most: int) -> None:
    taken = np.arange(1000, 1600, 3)
    for at in (0, 1000, 1001, 1300, 1599, 9999):
        places = ruler_reads.kept(taken, at, most=most)
        assert max(0, int(np.searchsorted(taken, at, side="right")) - 1) in places
        assert len(places) <= most + 3
        assert sorted(set(places.tolist())) == places.tolist()
