"""The spool's files: whatever happens to them, reading never raises, never loses what lies before the damage
and never makes anything up; a full disk leaves no torn frame; what is given up goes in the promised order.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from floatscope import spool_format as form
from floatscope.parcels import Parcel, encode
from floatscope.protocol.batch import Batch
from floatscope.protocol.json_rows import rows_from_batch
from floatscope.protocol.runinfo import TensorTable
from floatscope.rows import Block, Columns, Row, table_of
from floatscope.spool import Entry, Spool
from floatscope.spool_batches import joined, read_body, thinned, with_scalar
from floatscope.spool_files import read_about
from floatscope.spool_format import Flag, Kind
from floatscope.spool_thinning import BARE, QUARTER, Loss, pack_small, read_entry, shrink

NAMES = tuple(f"layers.{n:02d}/weight" for n in range(40))

payloads = st.lists(st.binary(max_size=60), min_size=1, max_size=6)


def segment_of(bodies: list[bytes]) -> tuple[bytes, list[int]]:
    """A segment with these bodies, and where each frame ends."""
    data, ends = form.MAGIC, []
    for number, body in enumerate(bodies):
        data += form.pack(Kind.BATCH, body, first=number, last=number, steps=1, seq=number)
        ends.append(len(data))
    return data, ends


def payload(data: bytes, frame: form.Frame) -> bytes:
    return data[frame.payload_at : frame.payload_at + frame.length]


@given(payloads, st.data())
def test_a_torn_tail_costs_only_what_was_not_whole(bodies: list[bytes], data: st.DataObject) -> None:
    whole, ends = segment_of(bodies)
    cut = data.draw(st.integers(0, len(whole)))
    torn = whole[:cut]
    frames, _ = form.scan(torn)
    assert [payload(torn, f) for f in frames] == bodies[: sum(end <= cut for end in ends)]


@settings(max_examples=150)
@given(payloads, st.data())
def test_a_flipped_byte_costs_at_most_the_frame_it_lies_in(bodies: list[bytes], data: st.DataObject) -> None:
    whole, ends = segment_of(bodies)
    at = data.draw(st.integers(len(form.MAGIC), len(whole) - 1))
    bad = bytearray(whole)
    bad[at] ^= data.draw(st.integers(1, 255))
    hit = sum(end <= at for end in ends)  # the frame that was hit
    frames, _ = form.scan(bytes(bad))
    found = [(f.first, f.seq, payload(bytes(bad), f)) for f in frames]
    wanted = [(n, n, body) for n, body in enumerate(bodies)]
    others = [frame for frame in found if frame[0] != hit]
    assert others == wanted[:hit] + wanted[hit + 1 :]
    for number, seq, body in found:
        if number == hit:  # the slot was hit: its seq is not believed, its body is as it was written
            assert (seq, body) == (None, bodies[hit])


@settings(max_examples=120)
@given(st.binary(max_size=400))
@example(form.MAGIC + form.MARK * 20)
def test_any_bytes_can_be_scanned(data: bytes) -> None:
    for start in (b"", form.MAGIC):
        frames, _ = form.scan(start + data)
        for frame in frames:
            assert frame.payload_at + frame.length <= len(start) + len(data)


def test_numbers_that_could_not_be_counted_on_from_are_no_frame(tmp_path: Path) -> None:
    """Else every batch after them would have a number that no file can hold."""
    (tmp_path / "00000001.seg").write_bytes(form.MAGIC + form.pack(Kind.BATCH, b"x", last=2**64 - 1, steps=1))
    spool = Spool.open(tmp_path, limit_bytes=2**20)
    assert (spool.damaged, len(spool.entries)) == (1, 0)
    add(spool, batch_of([1]))
    spool.close()


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_spool_of_damaged_files_opens_and_gives_only_what_was_put_in(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("spool")
    spool = Spool.open(path, limit_bytes=2**20)
    put = [add(spool, batch_of([step])) for step in range(data.draw(st.integers(1, 5)))]
    bodies = {spool.read(entry) for entry in put}
    spool.close()
    (file,) = path.glob("*.seg")
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(0, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    file.write_bytes(content[: data.draw(st.integers(0, len(content)))])

    again = Spool.open(path, limit_bytes=2**20)
    assert {again.read(entry) for entry in again.entries.values()} <= bodies
    add(again, batch_of([99]))
    again.close()


def batch_of(
    steps: list[int], *, detail: bool = True, wide: int = 1, scalars: int = 0
) -> tuple[Batch, TensorTable]:
    rows = []
    noise = np.random.default_rng(steps[0])
    for step in steps:
        values = np.arange(len(NAMES), dtype=np.float32) + step
        blocks = [Block(NAMES, {f"stat{k}": values for k in range(wide)})] if detail else []
        found = {f"noise{k}": float(noise.random()) for k in range(scalars)}
        found |= {"loss": 1.0 / (step + 1), f"only{step % 3}": float(step)}
        rows.append(Row(step, 1e9 + step, found, blocks))
    batch = Columns().batch(rows)
    return batch, table_of(batch, {name: {"format": "e4m3"} for name in NAMES})


def add(spool: Spool, what: tuple[Batch, TensorTable], *, seq: int | None = None) -> Entry:
    parcel = Parcel(*what)
    body = encode(parcel, rank=0, with_table=False, compress=True)
    return spool.append(
        body.data,
        flags=Flag.GZIP if "Content-Encoding" in body.headers else Flag.NONE,
        steps=len(parcel.batch),
        detail=len(parcel.batch.stat_row),
        table=parcel.table,
        table_key=parcel.table_hash,
        seq=seq,
    )


def rows_in(spool: Spool) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for entry in spool.entries.values():
        batch, table = read_entry(spool, entry, spool.read(entry), rank=0)
        assert set(table) == set(batch.tensor_names)
        found += [{k: v for k, v in row.items() if k != "rank"} for row in rows_from_batch(batch)]
    return found


def rows_of(what: tuple[Batch, TensorTable]) -> list[dict[str, object]]:
    return list(rows_from_batch(what[0]))


def test_another_process_finds_what_waits_with_seq_and_bytes(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path / "s", limit_bytes=2**20)
    entries = [add(spool, batch_of([step])) for step in range(5)]
    spool.stamp(entries[0], 17)
    spool.stamp(entries[1], 18)
    spool.delivered(entries[0])
    bodies = [spool.read(entry) for entry in entries[1:]]
    spool.close()

    again = Spool.open(tmp_path / "s", limit_bytes=2**20)
    assert [entry.seq for entry in again.entries.values()] == [18, None, None, None]
    assert [again.read(entry) for entry in again.entries.values()] == bodies
    assert not any(entry.is_own for entry in again.entries.values())
    assert again.steps == 4
    for entry in list(again.entries.values()):
        again.delivered(entry)
    again.remove()
    assert not (tmp_path / "s").exists()


def test_one_that_takes_the_place_of_others_counts_alone_also_for_a_later_process(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path, limit_bytes=2**20)
    old = [add(spool, batch_of([step])) for step in range(4)]
    whole, table = joined([batch_of([step]) for step in range(3)])
    parcel = Parcel(whole, table)
    body = encode(parcel, rank=0, with_table=True, compress=False)
    spool.rotate()
    new = spool.append(
        body.data, flags=Flag.HAS_TABLE, steps=3, detail=3, table=table, table_key=parcel.table_hash,
        seq=7, instead_of=old[:3],
    )  # fmt: skip
    spool.close()
    again = Spool.open(tmp_path, limit_bytes=2**20)
    assert [(e.seq, e.frame.steps) for e in again.entries.values()] == [(7, 3), (None, 1)]
    assert [row["step"] for row in rows_in(again)] == [0, 1, 2, 3]
    again.delivered(next(iter(again.entries.values())))
    again.close()
    third = Spool.open(tmp_path, limit_bytes=2**20)
    assert [row["step"] for row in rows_in(third)] == [3], "the three must not come back"
    third.close()
    assert new.seq == 7


def test_what_a_killed_process_had_replaced_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the new batch was written and before the old ones were marked; then once more, later."""
    spool = Spool.open(tmp_path, limit_bytes=2**20)
    old = [add(spool, batch_of([step])) for step in range(4)]
    spool.rotate()
    whole, table = joined([batch_of([step]) for step in range(3)])
    parcel = Parcel(whole, table)
    body = encode(parcel, rank=0, with_table=True, compress=False)
    with monkeypatch.context() as patch:
        patch.setattr(Spool, "_slot", lambda *args, **kwargs: None)
        spool.append(
            body.data, flags=Flag.HAS_TABLE, steps=3, detail=3, table=table, table_key=parcel.table_hash,
            instead_of=old[:3],
        )  # fmt: skip
    spool.close()
    again = Spool.open(tmp_path, limit_bytes=2**20)
    assert [row["step"] for row in rows_in(again)] == [0, 1, 2, 3]
    again.delivered(next(iter(again.entries.values())))  # its file goes with it
    again.close()
    third = Spool.open(tmp_path, limit_bytes=2**20)
    assert [row["step"] for row in rows_in(third)] == [3]
    third.close()


def test_a_spool_that_is_emptied_again_and_again_stays_small(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path, limit_bytes=8 * 2**20)
    largest = before = 0
    for step in range(3000):
        spool.delivered(add(spool, batch_of([step], wide=4), seq=step))
        if spool.size < before:  # it has just been emptied
            copy = tmp_path.with_name(f"{tmp_path.name}-{step}")
            shutil.copytree(tmp_path, copy)
            later = Spool.open(copy, limit_bytes=2**20)
            assert (later.last_seq, later.steps) == (step, 0), "how far the server has come is known"
            later.close()
        largest, before = max(largest, spool.size), spool.size
    assert largest < 2**18
    assert len(list(tmp_path.glob("*.seg"))) == 1
    spool.close()


def test_a_disk_that_fills_up_leaves_no_torn_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool.open(tmp_path, limit_bytes=2**20)
    add(spool, batch_of([0]))
    pwrite = os.pwrite

    def full(file: int, data: bytes, at: int) -> int:
        if len(data) > 100:
            return pwrite(file, data[:100], at)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        add(spool, batch_of([1], detail=False))
    monkeypatch.undo()
    add(spool, batch_of([2]))
    spool.close()
    again = Spool.open(tmp_path, limit_bytes=2**20)
    assert [row["step"] for row in rows_in(again)] == [0, 2]
    assert again.damaged == 0
    again.close()


def test_small_batches_of_a_full_file_become_large_ones_without_a_change(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path, limit_bytes=2**20)
    wanted = []
    for step in range(150):
        what = batch_of([step], detail=step % 10 == 0)
        add(spool, what, seq=0 if step == 0 else None)
        wanted += rows_of(what)
    spool.rotate()
    before = spool.size
    loss = Loss()
    pack_small(spool, loss, rank=0, compress=True)
    assert len(spool.entries) <= 4
    assert next(iter(spool.entries.values())).seq == 0, "the one that has a seq keeps its bytes"
    assert spool.size < before / 3
    assert repr(rows_in(spool)) == repr(wanted)
    assert (loss.thinned, loss.dropped, loss.damaged) == (0, 0, 0)
    spool.close()
    again = Spool.open(tmp_path, limit_bytes=2**20)
    assert repr(rows_in(again)) == repr(wanted)
    again.close()


def test_over_the_limit_detail_goes_first_then_all_of_it_then_steps_and_all_is_counted(
    tmp_path: Path,
) -> None:
    spool = Spool.open(tmp_path, limit_bytes=2**20)
    loss = Loss()
    seen: set[str] = set()
    step = 0
    while loss.dropped == 0 and step < 60_000:
        steps = list(range(step, step + 20))
        add(spool, batch_of(steps, wide=8, scalars=50), seq=0 if step == 0 else None)
        step += 20
        if spool.size > spool.limit_bytes:
            shrink(spool, loss, rank=0, compress=True)
            assert spool.size <= spool.limit_bytes
        levels = [segment.level for segment in spool.segments]
        if QUARTER in levels and BARE not in levels:
            seen.add("thinned")
        if BARE in levels and loss.dropped == 0:
            seen.add("bare")
        rows = sum(entry.frame.steps for entry in spool.entries.values())
        if loss.dropped == 0:
            assert rows == step, "no step goes while there is detail to give up"
    assert seen == {"thinned", "bare"}
    found = rows_in(spool)
    assert loss.dropped > 0
    assert found[0]["step"] == 0, "what has a seq stays"
    assert len(found) + loss.dropped == step
    detailed = sum("tensors" in row for row in found)
    assert detailed + loss.thinned <= step
    assert all("loss" in row for row in found)
    spool.close()


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=6))
def test_batches_put_together_say_the_same(parts: list[tuple[int, bool]]) -> None:
    step, batches = 0, []
    for size, detail in parts:
        batches.append(batch_of(list(range(step, step + size)), detail=detail))
        step += size
    whole, table = joined(batches)
    assert repr(list(rows_from_batch(whole))) == repr([row for b in batches for row in rows_of(b)])
    body = encode(Parcel(whole, table), rank=0, with_table=True, compress=True)
    again, _ = read_body(body.data, Flag.HAS_TABLE | Flag.GZIP if "Content-Encoding" in body.headers
                         else Flag.HAS_TABLE, rank=0, find_table=lambda key: None)  # fmt: skip
    assert repr(list(rows_from_batch(again))) == repr(list(rows_from_batch(whole)))


def test_thinning_keeps_scalars_and_the_chosen_steps() -> None:
    batch, table = batch_of(list(range(8)))
    turn = iter(range(8))
    smaller, _, gone = thinned(batch, table, lambda: next(turn) % 4 == 0)
    rows = list(rows_from_batch(smaller))
    assert gone == 6
    assert [("tensors" in row) for row in rows] == [True, False, False, False, True, False, False, False]
    assert [row["loss"] for row in rows] == [row["loss"] for row in rows_of((batch, table))]
    bare, no_table, _ = thinned(batch, table, lambda: False)
    assert bare.tensor_names == ()
    assert no_table == {}


def test_a_scalar_can_be_added_to_the_first_step_only_where_it_has_none() -> None:
    batch, _ = batch_of([1, 2], detail=False)
    marked = with_scalar(batch, "resumed", 1.0)
    assert [row.get("resumed") for row in rows_from_batch(marked)] == [1.0, None]
    assert [row["loss"] for row in rows_from_batch(with_scalar(batch, "loss", 9.0))] == [0.5, 1 / 3]


def test_the_description_is_replaced_whole_and_a_broken_one_is_passed_over(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path, limit_bytes=2**20)
    assert read_about(tmp_path) == {}
    spool.describe({"rank": 3, "run": {"run_id": "r"}})
    assert read_about(tmp_path)["rank"] == 3
    for bad in (b"", b"{", b"[]", b'{"format": "other/9"}', b"[" * 100_000, b"\xff"):
        (tmp_path / "run.json").write_bytes(bad)
        assert read_about(tmp_path) == {}
    spool.describe({"rank": 4})
    assert json.loads((tmp_path / "run.json").read_text())["rank"] == 4
    spool.close()
