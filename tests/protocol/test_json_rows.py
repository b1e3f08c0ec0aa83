"""The floatscope log's rows survive the trip through columns with NaN, Inf, missing and zero kept apart."""

from __future__ import annotations

import math
import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope.protocol import json_rows, names, wire_json
from floatscope.protocol.errors import ProtocolError, TooLarge
from floatscope.protocol.strict_json import dumps, loads, number

NAMES = st.text(st.characters(exclude_categories=("C", "Zl", "Zp")), min_size=1, max_size=12)
FLOAT64 = st.floats()
FLOAT32 = st.floats(width=32)
TENSORS = st.dictionaries(
    NAMES, st.dictionaries(NAMES.filter(lambda n: n != "hist_log2"), FLOAT32, max_size=3), max_size=3
)


@st.composite
def log_rows(draw: st.DrawFn) -> list[dict[str, Any]]:
    steps = sorted(draw(st.sets(st.integers(0, names.MAX_STEP), min_size=1, max_size=6)))
    rows = []
    for step in steps:
        scalars = draw(
            st.dictionaries(NAMES.filter(lambda n: n not in json_rows.RESERVED), FLOAT64, max_size=4)
        )
        row: dict[str, Any] = {**scalars, "step": step}
        if draw(st.booleans()):
            row["time"] = draw(st.floats(0, 4e9))
        if draw(st.booleans()):
            row["tensors"] = draw(TENSORS)
        rows.append(row)
    return rows


def same(a: Any, b: Any) -> bool:
    """Equal with NaN equal to NaN and 0.0 different from -0.0."""
    if isinstance(a, float) and isinstance(b, float):
        return struct.pack("<d", a) == struct.pack("<d", b) or (math.isnan(a) and math.isnan(b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return type(a) is type(b) and a == b


def without_empty(row: dict[str, Any]) -> dict[str, Any]:
    """A tensor without a single statistic leaves nothing behind in columns."""
    out = dict(row)
    if "tensors" in out:
        out["tensors"] = {name: stats for name, stats in out["tensors"].items() if stats}
    return out


@settings(deadline=None)
@given(log_rows())
def test_rows_come_back_from_columns_bit_equal(rows: list[dict[str, Any]]) -> None:
    back = list(json_rows.rows_from_batch(json_rows.batch_from_rows(rows)))
    assert len(back) == len(rows)
    assert all(same(without_empty(a), b) for a, b in zip(rows, back, strict=True))


@settings(deadline=None)
@given(log_rows())
def test_rows_come_back_from_the_json_wire(rows: list[dict[str, Any]]) -> None:
    batch = json_rows.batch_from_rows(rows)
    back = list(json_rows.rows_from_batch(wire_json.decode(wire_json.encode(batch), rank=0)))
    assert all(same(a, b) for a, b in zip(json_rows.rows_from_batch(batch), back, strict=True))


@settings(deadline=None)
@given(st.binary(max_size=300) | st.text(max_size=200).map(str.encode))
def test_arbitrary_bytes_are_a_protocol_error_or_a_batch(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        wire_json.decode(body, rank=0)


@pytest.mark.parametrize(
    ("rows", "field"),
    [
        ([{"loss": 1.0}], "steps[0].step"),
        ([{"step": 1.5}], "steps[0].step"),
        ([{"step": -1}], "steps[0].step"),
        ([{"step": True}], "steps[0].step"),
        ([{"step": 2**60}], "steps[0].step"),
        ([{"step": 4}, {"step": 4}], "steps[1].step"),
        ([{"step": 1, "loss": "high"}], "steps[0].loss"),
        ([{"step": 1, "loss": True}], "steps[0].loss"),
        ([{"step": 1, "time": "Infinity"}], "steps[0].time"),
        ([{"step": 1, "rank": 3}], "steps[0].rank"),
        ([{"step": 1, "a\x00b": 1.0}], "steps[0].a\\x00b"),
        ([{"step": 1, "x" * 2000: 1.0}], "steps[0]." + "x" * 191 + "..."),
        ([{"step": 1, "tensors": [1]}], "steps[0].tensors"),
        ([{"step": 1, "tensors": {"a/input": 3}}], "steps[0].tensors['a/input']"),
        ([{"step": 1, "tensors": {"a/input": {"amax": "big"}}}], "steps[0].tensors['a/input'].amax"),
        ([{"step": 1, "tensors": {"a/input": {"amax": 1e39}}}], "steps[0].tensors['a/input'].amax"),
        (
            [{"step": 1, "tensors": {"a/input": {"hist_log2": [1, 2]}}}],
            "steps[0].tensors['a/input'].hist_log2",
        ),
        ([7], "steps[0]"),
    ],
)
def test_bad_rows_name_the_field(rows: list[Any], field: str) -> None:
    with pytest.raises(ProtocolError) as error:
        json_rows.batch_from_rows(rows, rank=0)
    assert error.value.field == field


def test_sparse_rows_cannot_ask_for_more_memory_than_the_protocol_allows() -> None:
    rows = [
        {"step": i, "tensors": {f"t{i}.{k}/input": {"amax": 1.0} for k in range(20)}} for i in range(2000)
    ]
    with pytest.raises(TooLarge):
        json_rows.batch_from_rows(rows)


def test_a_body_of_countless_values_is_refused_before_it_is_built() -> None:
    body = b'{"steps":[' + b"[]," * 3_000_000 + b"1]}"
    tracemalloc.start()
    with pytest.raises(TooLarge):
        wire_json.decode(body, rank=0)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


def test_text_under_an_unknown_key_is_passed_over_and_null_is_missing() -> None:
    batch = json_rows.batch_from_rows([{"step": 1, "note": "hello", "loss": None, "mine": "nan"}])
    assert batch.scalar("note")[1].tolist() == [False]
    assert batch.scalar("loss")[1].tolist() == [False]
    assert math.isnan(batch.scalar("mine")[0][0])


@pytest.mark.parametrize(
    ("text", "value"), [("NaN", math.nan), ("-Infinity", -math.inf), (" inf ", math.inf)]
)
def test_spellings_of_non_finite_numbers(text: str, value: float) -> None:
    got = number(text, field="x")
    assert got is not None
    assert same(got, value)


def test_non_finite_numbers_are_strings_in_json() -> None:
    assert (
        dumps({"a": [math.nan, math.inf, -math.inf, 0.0, None]})
        == '{"a":["NaN","Infinity","-Infinity",0.0,null]}'
    )
    assert math.isnan(loads('{"a": NaN}')["a"])


@pytest.mark.parametrize("text", ["[" * 100_000, "1" * 10_000, '{"a":', '"\\ud800'])
def test_hostile_json_is_a_protocol_error(text: str) -> None:
    with pytest.raises(ProtocolError):
        loads(text)


def test_histograms_survive() -> None:
    counts = list(range(64))
    batch = json_rows.batch_from_rows(
        [{"step": 1, "tensors": {"a/input": {"amax": 1.0, "hist_log2": counts}}}]
    )
    assert next(json_rows.rows_from_batch(batch))["tensors"]["a/input"] == {"amax": 1.0, "hist_log2": counts}


def test_rows_of_a_batch_keep_their_statistics() -> None:
    rows = [
        {"step": i, "loss": float(i), "tensors": {"a/input": {"amax": float(i)}}} for i in range(0, 10, 2)
    ]
    rows[1].pop("tensors")
    part = json_rows.batch_from_rows(rows).rows(1, 4)
    assert [same(a, b) for a, b in zip(rows[1:4], json_rows.rows_from_batch(part), strict=True)] == [True] * 3


def test_a_hole_of_lost_steps_survives() -> None:
    batch = wire_json.decode(b'{"steps": [], "lost": {"first_step": 3, "last_step": 9}}', rank=0)
    assert batch.lost == (3, 9)
    assert wire_json.decode(wire_json.encode(batch), rank=0).lost == (3, 9)


@pytest.mark.parametrize(
    "body",
    [
        b'{"steps": []}',
        b'{"steps": [], "lost": {"first_step": 9, "last_step": 3}}',
        b'{"steps": [{"step": 1}], "lost": {"first_step": 1, "last_step": 3}}',
        b'{"steps": [], "lost": 4}',
        b'{"steps": [{"step": 1}], "segment": -1}',
        b"[]",
    ],
)
def test_bad_bodies_are_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        wire_json.decode(body, rank=0)
