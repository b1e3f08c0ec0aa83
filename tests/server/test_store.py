"""What both databases must do alike: every step once, bit for bit; the newest segment; a real delete."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from pydantic import SecretStr
from sqlalchemy import func, select

from floatscope.protocol.json_rows import rows_from_batch
from floatscope.protocol.runinfo import RunInfo
from floatscope_server import export, tables
from floatscope_server.app import create_app
from floatscope_server.database import Database
from floatscope_server.errors import RunNotFound, SeqConflict, SeqGap
from floatscope_server.services import Services
from floatscope_server.settings import Settings
from floatscope_server.store import batches, outbox, runs, sending, series_reads
from floatscope_server.store.raw import Source
from floatscope_server.store.stretches import Span
from tests.server.samples import TABLE, TENSORS, Scripted, as_stored, body, finding, ingest, lines, rows

ALL = Span(0, 10**9)


@pytest.fixture
def services(database: Database, settings: Settings) -> Services:
    """A server's parts without HTTP, over either database; a finding from step 20, recovered from 40."""

    def script(last: int | None) -> list[dict[str, Any]]:
        if last is None or last < 20:
            return []
        over = last >= 40
        return [finding(id="f", state="recovered" if over else "raised", resolved_step=40 if over else None)]

    with_slack = settings.model_copy(update={"slack_webhook_url": SecretStr("http://127.0.0.1:9/x")})
    app: FastAPI = create_app(with_slack, database=database, engines=Scripted(script))
    found: Services = app.state.services
    found.lifecycle.open("r", RunInfo(name="r", tensors=TABLE))
    return found


def exported(services: Services, *, span: Span = ALL, ranks: tuple[int, ...] = (0,)) -> list[str]:
    with services.database.read() as c:
        run = runs.get(c, "r")
    return lines(
        list(export.rows(services.database, run.id, ranks, span, tensor_tables=services.tensor_tables))
    )


def test_every_step_comes_back_once_and_bit_equal(services: Services) -> None:
    steps = rows(0, 50)
    for seq in range(5):
        assert ingest(services, "r", seq, body(steps[seq * 10 : seq * 10 + 10])).expected_seq == seq + 1
    assert exported(services) == as_stored(steps)
    assert exported(services, span=Span(7, 23)) == as_stored(steps[7:24])


def test_repeat_conflict_and_gap(services: Services) -> None:
    first, second = body(rows(0, 5)), body(rows(5, 5))
    ingest(services, "r", 0, first)
    ingest(services, "r", 1, second)
    again = ingest(services, "r", 0, first)
    assert (again.repeated, again.expected_seq) == (True, 2)
    with pytest.raises(SeqConflict) as conflict:
        ingest(services, "r", 0, second)
    assert conflict.value.extra == {"reason": "conflict", "expected_seq": 2}
    with pytest.raises(SeqGap) as gap:
        ingest(services, "r", 7, body(rows(10, 5)))
    assert gap.value.extra == {"reason": "gap", "expected_seq": 2}
    with pytest.raises(RunNotFound):
        ingest(services, "nobody", 0, first)
    assert exported(services) == as_stored(rows(0, 5) + rows(5, 5))


def test_a_resume_opens_a_segment_and_the_newest_is_read(services: Services) -> None:
    old, new = rows(0, 30), rows(12, 8, seed=9)
    ingest(services, "r", 0, body(old))
    assert ingest(services, "r", 1, body(new)).segment == 1
    assert ingest(services, "r", 2, body(rows(20, 2, seed=9))).segment == 1
    newest = as_stored(old[:12]) + as_stored(new, segment=1) + as_stored(rows(20, 2, seed=9), segment=1)
    assert exported(services) == newest + as_stored(old[22:])
    assert exported(services, span=Span(0, 10**9, segment=0)) == as_stored(old)
    assert exported(services, span=Span(11, 13)) == newest[11:14]


def test_series_follow_the_newest_segment(services: Services) -> None:
    def row(step: int, amax: float) -> dict[str, Any]:
        return {"step": step, "loss": amax, "tensors": {TENSORS[0]: {"amax": amax, "scale": 2.0}}}

    ingest(services, "r", 0, body([row(s, 1.0) for s in range(6)]))
    ingest(services, "r", 1, body([row(s, 224.0) for s in range(2, 4)]))
    with services.database.read() as c:
        run = runs.get(c, "r")

        source = Source(c, run.id, 0, services.tensor_tables)

        def read(stat: str, span: Span) -> list[float]:
            seen = series_reads.view(source, span, with_tensors=True)
            level = series_reads.series(seen, stat, TENSORS[0], 99, stored=("amax", "scale"), tensors=TABLE)
            assert level.last is not None
            return [float(v) for v in level.last[0]]

        assert read("amax", ALL) == [1, 1, 224, 224, 1, 1]
        assert read("amax", Span(0, 99, segment=0)) == [1] * 6
        assert read("sat", Span(1, 2)) == [pytest.approx(2 / 448), pytest.approx(1.0)]
        assert read("headroom_log2", Span(2, 2)) == [pytest.approx(0.0)]
        found = series_reads.scalars(series_reads.view(source, ALL), ["loss", "none"], 99)
        assert found["loss"].maximum[0].tolist() == [1, 1, 224, 224, 1, 1]
        assert not len(found["none"].bins)


def test_ranks_are_kept_apart_and_exported_side_by_side(services: Services) -> None:
    for rank in (0, 1):
        ingest(services, "r", 0, body([{**row, "rank": rank} for row in rows(0, 4, seed=rank)]), rank=rank)
    zero, one = as_stored(rows(0, 4)), as_stored(rows(0, 4, seed=1), rank=1)
    assert exported(services, ranks=(0, 1)) == [line for pair in zip(zero, one, strict=True) for line in pair]


def test_a_hole_is_stored_and_shown(services: Services) -> None:
    ingest(services, "r", 0, body(rows(0, 3)))
    ingest(services, "r", 1, b'{"steps": [], "lost": {"first_step": 3, "last_step": 9}}')
    assert ingest(services, "r", 2, body(rows(10, 2))).segment == 0
    with services.database.read() as c:
        keys = batches.keys(c, runs.get(c, "r").id)
    assert [(key.lost, key.first_step, key.last_step) for key in keys] == [
        (False, 0, 2),
        (True, 3, 9),
        (False, 10, 11),
    ]


def test_a_stored_batch_is_loaded_as_it_was_sent(services: Services) -> None:
    steps = rows(0, 20)
    steps[3]["tensors"] = {TENSORS[0]: {"amax": 1.0, "hist_log2": list(range(64))}}
    ingest(services, "r", 0, body(steps))
    with services.database.read() as c:
        run = runs.get(c, "r")
        (key,) = batches.keys(c, run.id)
        names = batches.stat_names(c, run.id)
        batch = batches.load(c, run.id, key, tensor_tables=services.tensor_tables, stats=names)
    assert lines(list(rows_from_batch(batch))) == as_stored(steps)
    assert list(batch.hist_row) == [3]


def test_alert_and_messages_are_stored_with_the_batch_and_in_order(services: Services) -> None:
    for seq in range(6):
        ingest(services, "r", seq, body(rows(seq * 10, 10)))
    with services.database.read() as c:
        (waiting,) = sending.waiting(c, now=1e12, longest_wait_s=60.0)
        everything = outbox.deliveries(c, ["f"])["f"]
        assert [delivery.event for delivery in everything] == ["raised", "recovered"]
        first = min(
            item.id for item in sending.of_channel(c, waiting.channel, states=(), before=None, limit=9)
        )
        assert waiting.ready == first  # the next one only after it


def test_delete_leaves_nothing_and_the_name_is_free_again(services: Services) -> None:
    for seq in range(6):
        ingest(services, "r", seq, body(rows(seq * 10, 10)))
    services.lifecycle.delete("r")
    services.remover.round()
    with services.database.read() as c:
        for name, table in tables.metadata.tables.items():
            if name not in ("token", "secret", "channel", "audit"):  # the audit log outlives what it tells of
                assert c.execute(select(func.count()).select_from(table)).scalar() == 0, name
    services.lifecycle.open("r", RunInfo(name="again"))
    assert ingest(services, "r", 0, body(rows(0, 1))).expected_seq == 1
