"""The safetensors body: bit-equal there and back, and nothing a lying body claims is believed."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope.protocol import wire_safetensors as wire
from floatscope.protocol.batch import Batch
from floatscope.protocol.errors import NeedTensors, ProtocolError
from floatscope.protocol.runinfo import TensorTable

TABLE: TensorTable = {f"l{k}/input": {"format": "e4m3", "call_order": k} for k in range(11)}


def random_batch(seed: int, steps: int = 6, scalars: int = 9) -> Batch:
    """A batch with bit patterns of every kind, NaN payloads and infinities included."""
    rng = np.random.default_rng(seed)
    stat_row = np.flatnonzero(rng.random(steps) < 0.6)
    shape = (len(stat_row), len(TABLE))
    present = {name: rng.random(shape) < 0.8 for name in ("amax", "scale")}
    bits = {name: rng.integers(0, 2**32, shape, dtype=np.uint32).view(np.float32) for name in present}
    scalars_present = rng.random((steps, scalars)) < 0.8
    values = rng.integers(0, 2**63, (steps, scalars)).view(np.float64)
    hist_row = stat_row[:1]
    return Batch(
        step=np.cumsum(rng.integers(1, 9, steps)),
        time=np.where(rng.random(steps) < 0.2, np.nan, 1.7e9),
        scalar_names=tuple(f"s{k}" for k in range(scalars)),
        scalars=np.where(scalars_present, values, 0.0),
        scalars_present=scalars_present,
        tensor_names=tuple(sorted(TABLE)),
        stat_row=stat_row,
        stats={name: np.where(present[name], bits[name], np.float32(0)) for name in present},
        stats_present=present,
        hist_row=hist_row,
        hist_log2=rng.integers(0, 2**32, (len(hist_row), len(TABLE), 64), dtype=np.uint32),
        segment=seed % 3 or None,
    )


def no_table(_: str) -> TensorTable | None:
    return None


def columns(batch: Batch) -> dict[str, bytes]:
    out = {
        name: getattr(batch, name).tobytes()
        for name in ("step", "time", "scalars", "scalars_present", "stat_row", "hist_row")
    }
    out["hist_log2"] = batch.hist_log2.tobytes()
    for name in batch.stats:
        out[name] = batch.stats[name].tobytes() + batch.stats_present[name].tobytes()
    return out


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_a_batch_comes_back_bit_equal(seed: int) -> None:
    batch = random_batch(seed)
    back, table = wire.decode(wire.encode(batch, TABLE, with_table=True), find_table=no_table)
    assert table == TABLE
    assert (back.scalar_names, back.tensor_names, back.segment) == (
        batch.scalar_names,
        batch.tensor_names,
        batch.segment,
    )
    assert columns(back) == columns(batch)


def test_a_known_table_travels_by_its_hash_only() -> None:
    batch = random_batch(1)
    body = wire.encode(batch, TABLE, with_table=False)
    with pytest.raises(NeedTensors) as error:
        wire.decode(body, find_table=no_table)
    assert error.value.table_hash == wire.table_hash(TABLE)
    back, _ = wire.decode(body, find_table={wire.table_hash(TABLE): TABLE}.get)
    assert columns(back) == columns(batch)


@settings(deadline=None, max_examples=120)
@given(st.data())
def test_a_damaged_body_is_a_protocol_error_or_a_batch(data: st.DataObject) -> None:
    body = bytearray(wire.encode(random_batch(5), TABLE, with_table=True))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    del body[data.draw(st.integers(0, len(body))) or len(body) :]
    try:
        batch, _ = wire.decode(bytes(body), find_table=no_table)
    except ProtocolError:
        return
    assert len(batch) == len(batch.time)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_a_protocol_error(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        wire.decode(body, find_table=no_table)


def rebuilt(change: Callable[[dict[str, Any]], None]) -> bytes:
    """A valid body whose header was changed by hand, its data left alone."""
    body = wire.encode(random_batch(7), TABLE, with_table=True)
    (length,) = struct.unpack("<Q", body[:8])
    header = json.loads(body[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body[8 + length :]


def meta(key: str, value: str) -> Callable[[dict[str, Any]], None]:
    return lambda header: header["__metadata__"].update({key: value})


def entry(name: str, **changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda header: header[name].update(changes)


def rename(old: str, new: str) -> Callable[[dict[str, Any]], None]:
    return lambda header: header.update({new: header.pop(old)})


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (meta("schema", "other/1"), "__metadata__.schema"),
        (meta("scalars", "[1]"), "__metadata__.scalars[0]"),
        (meta("scalars", '["step"]'), "__metadata__.scalars[0]"),
        (meta("scalars", '["a"]'), "scalars"),
        (meta("scalars", "{"), "__metadata__.scalars"),
        (meta("tensors", "[]"), "__metadata__.tensors"),
        (meta("tensors", json.dumps({"hash": "0" * 64, "table": TABLE})), "__metadata__.tensors.hash"),
        (
            meta("tensors", json.dumps({"hash": "0" * 64, "table": {"a\n": {}}})),
            "__metadata__.tensors.table key",
        ),
        (meta("segment", "x"), "__metadata__.segment"),
        (entry("step", dtype="F64"), "step"),
        (entry("step", shape=[2**62]), "body"),
        (entry("time", data_offsets=[0, 2**60]), "body"),
        (rename("time", "tame"), "time"),
        (rename("stat.amax", "stat.am\u0000ax"), "stat.am\\x00ax"),
        (rename("hist_log2", "other"), "hist_log2"),
        (rename("scalars.present", "other"), "other"),
    ],
)
def test_a_lying_header_names_the_field(change: Callable[[dict[str, Any]], None], field: str) -> None:
    with pytest.raises(ProtocolError) as error:
        wire.decode(rebuilt(change), find_table=no_table)
    assert error.value.field == field


def test_a_header_longer_than_the_body_is_refused() -> None:
    with pytest.raises(ProtocolError):
        wire.decode(struct.pack("<Q", 2**63) + b"{}", find_table=no_table)


@pytest.mark.parametrize("steps", [[3, 3, 4], [3, 2, 4], [-1, 2, 4]])
def test_steps_must_ascend(steps: list[int]) -> None:
    batch = random_batch(3, steps=3)
    none = np.empty(0, np.int64)
    bad = replace(batch, step=np.array(steps), stat_row=none, stats={}, stats_present={}, hist_row=none)
    with pytest.raises(ProtocolError):
        wire.decode(wire.encode(bad, TABLE, with_table=True), find_table=no_table)


def test_the_same_batch_is_the_same_bytes() -> None:
    batch = replace(random_batch(3, steps=3), segment=2)
    bodies = {wire.encode(batch, TABLE, with_table=True) for _ in range(20)}
    assert len(bodies) == 1
    (body,) = bodies
    assert int.from_bytes(body[:8], "little") % 8 == 0
