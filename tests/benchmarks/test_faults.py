"""The suite of faults in small: what takes minutes by hand takes seconds here; and its checks can fail."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import delete, update

from benchmarks.faults.__main__ import main
from benchmarks.faults.checks import check_story
from benchmarks.faults.requests import Fuzz
from benchmarks.faults.same_bits import compare
from benchmarks.faults.senders import Courier, put
from benchmarks.faults.server import served
from benchmarks.faults.story import Story
from benchmarks.faults.tally import Tally
from floatscope_server import tables
from floatscope_server.database import Database


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "asked",
    [
        ("kill", "--kills", "3", "--pause-s", "0.02"),
        ("kill", "--kills", "2", "--pause-s", "0.02", "--database", "postgresql"),
        ("disk", "--times", "2", "--way", "limit"),
        ("clock", "--jumps", "3"),
        ("fuzz", "--requests", "100"),
    ],
    ids=lambda asked: " ".join(asked[:1] + asked[-1:]),
)
def test_every_promise_holds(asked: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    code = main(asked)
    said = capsys.readouterr().out
    assert code == 0, said
    assert "every promise held" in said


def test_a_story_is_the_same_each_time_and_holds_every_kind_of_value() -> None:
    story = Story("s", 3, 2, 40)
    once, again = (list(story.stream(1)) for _ in range(2))
    assert [sent.body for sent in once] == [sent.body for sent in again]
    assert {sent.content_type for sent in once} == {sent.content_type for sent in story.stream(0)}
    odd = np.concatenate([sent.batch.scalar("odd")[0] for sent in once])
    assert np.isnan(odd).any()
    assert np.isposinf(odd).any()
    assert np.isneginf(odd).any()
    assert any(sent.batch.lost for seed in range(3) for sent in Story("s", seed, 1, 60).stream(0))
    assert max(sent.segment for seed in range(3) for sent in Story("s", seed, 1, 60).stream(0)) > 0


def test_one_other_bit_or_one_missing_value_is_seen() -> None:
    batch = next(
        s.batch for s in Story("s", 1, 1, 50).stream(0) if len(s.batch) > 3 and len(s.batch.stat_row)
    )
    assert compare(batch, batch).differs == []
    rms = batch.stats["rms"].copy()
    at = tuple(np.argwhere(batch.stats_present["rms"])[0])
    rms.view(np.uint32)[at] ^= 1
    assert compare(batch, replace(batch, stats={**batch.stats, "rms": rms})).differs
    present = batch.scalars_present.copy()
    present[0, 0] = False
    assert compare(batch, replace(batch, scalars_present=present)).differs
    assert compare(batch, replace(batch, step=batch.step + 1)).differs


def test_a_lost_batch_another_verdict_and_a_doubled_alert_are_seen(tmp_path: Path) -> None:
    story, tally = Story("s", 4, 1, 30), Tally()
    with served(tmp_path / "data") as server:
        client = server.start()
        client.open_run("s", **story.described)
        courier = Courier(server.port, tally, random.Random(1))
        for sent in story.stream(0):
            put(courier, story, 0, sent, tally=tally)
        courier.close()
        assert server.stop() == 0
    database = Database(f"sqlite:///{tmp_path / 'data' / 'floatscope.db'}")

    def broken(acked: int = 30) -> list[str]:
        found = Tally()
        check_story(database, story, ended=None, acked={0: acked}, tally=found)
        return found.broken

    assert broken() == []
    assert any("31 acknowledged" in text for text in broken(31))
    alert = tables.alert
    with database.write() as c:
        assert c.execute(update(alert).values(finding_json='{"id": "other"}')).rowcount > 0
    assert any("alerts" in text for text in broken())
    with database.write() as c:
        c.execute(
            update(tables.verdict).values(body_json='{"status": "healthy", "summary": "x", "findings": []}')
        )
    assert any("clean replay" in text for text in broken())
    with database.write() as c:
        c.execute(delete(tables.batch).where(tables.batch.c.seq == 29))
    assert any("29 batches" in text for text in broken())
    database.close()


def test_a_request_can_be_made_again_from_its_number() -> None:
    document: dict[str, Any] = {"paths": {"/api/v1/runs/{run_id}": {"get": {}, "patch": {}}}}
    one, other = Fuzz(document, seed=5), Fuzz(document, seed=5)
    assert [one.request(n) for n in range(50)] == [other.request(n) for n in reversed(range(50))][::-1]
    assert len({one.request(n).path for n in range(50)}) > 5
