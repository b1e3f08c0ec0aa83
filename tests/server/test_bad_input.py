"""Bad input: a clear error that names the field and says what to do, never a 500 or a lost valid batch."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zstandard

from floatscope.protocol import wire_safetensors
from floatscope.protocol.json_rows import batch_from_rows
from floatscope_server.body import unpack
from tests.server.live import TOKEN, Answer, Client
from tests.server.samples import TABLE, TENSORS, as_stored, body, lines, rows

SAFETENSORS = {"Content-Type": wire_safetensors.CONTENT_TYPE}
MIB = 2**20


def full_batch(count: int = 6) -> list[dict[str, Any]]:
    """Rows in which every tensor is present, so that the table is the whole one."""
    return [
        {"step": step, "loss": 2.0, "tensors": {name: {"amax": 1.5, "scale": 2.0} for name in TENSORS}}
        for step in range(count)
    ]


def packed(*, with_table: bool = True) -> bytes:
    return wire_safetensors.encode(batch_from_rows(full_batch()), TABLE, with_table=with_table)


def change_header(content: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """The body with another safetensors header in front of the same numbers."""
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + length :]


def problem(answer: Answer, status: int, *, field: str | None = None) -> dict[str, Any]:
    """The problem document; it must say what is wrong, where, and what to do."""
    assert answer.status == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = answer.json
    assert found["status"] == status
    assert found["detail"]
    if field is not None:
        assert found["field"] == field
        assert found["expected"]
        assert found["hint"]
    return found


@pytest.fixture
def run(client: Client) -> Iterator[Client]:
    """A server with run ``r`` that holds one good batch.

    Whatever a test did: afterwards that batch is there and the next one is taken.
    """
    assert client.open_run("r").status == 201
    assert client.put("r", 0, body(rows(0, 3))).status == 200
    yield client
    assert client.put("r", 1, body(rows(50, 2))).status == 200
    assert lines(client.steps("r")) == as_stored(rows(0, 3) + rows(50, 2))


@pytest.mark.parametrize(
    ("content", "field"),
    [
        (b"", "body"),
        (b"{", "body"),
        (b"\xff\xfe", "body"),
        (b"null", "body"),
        (b"[]", "body"),
        (b"[" * 100_000, "body"),
        (b'{"steps": 5}', "steps"),
        (b'{"steps": []}', "steps"),
        (b'{"steps": [5]}', "steps[0]"),
        (b'{"steps": [{"loss": 1}]}', "steps[0].step"),
        (b'{"steps": [{"step": -1}]}', "steps[0].step"),
        (b'{"steps": [{"step": 1.5}]}', "steps[0].step"),
        (b'{"steps": [{"step": 10}, {"step": 9}]}', "steps[1].step"),
        (b'{"steps": [{"step": 10}, {"step": 10}]}', "steps[1].step"),
        (b'{"steps": [{"step": 10, "rank": 3}]}', "steps[0].rank"),
        (b'{"steps": [{"step": 10, "loss": "high"}]}', "steps[0].loss"),
        (b'{"steps": [{"step": 10, "loss": true}]}', "steps[0].loss"),
        (
            b'{"steps": [{"step": 10, "tensors": {"a/input": {"amax": 1e39}}}]}',
            "steps[0].tensors['a/input'].amax",
        ),
        (b'{"steps": [{"step": 10, "tensors": []}]}', "steps[0].tensors"),
        (b'{"steps": [{"step": 10}], "segment": -1}', "segment"),
        (b'{"steps": [{"step": 10}], "segment": 2}', "segment"),
        (b'{"steps": [], "lost": {"first_step": 9, "last_step": 3}}', "lost.last_step"),
        (b'{"steps": [{"step": ' + b"9" * 5000 + b"}]}", None),
        (b'{"steps": [{"step": 10, "' + b"n" * 1025 + b'": 1}]}', None),
        (b'{"steps": [{"step": 10, "a\\u0000b": 1}]}', None),
        (b'{"steps": [{"step": 10, "\\ud800": 1}]}', None),
        (b'{"steps": [{"step": 10, "tensors": {"a\\nb/input": {"amax": 1}}}]}', None),
    ],
)
def test_malformed_json(run: Client, content: bytes, field: str | None) -> None:
    found = problem(run.put("r", 1, content), 422)
    assert field is None or found["field"] == field


def test_a_number_beyond_float32_names_step_tensor_and_stat(run: Client) -> None:
    steps = [{"step": 7, "tensors": {"a/input": {"amax": -1e300}}}]
    found = problem(run.put("r", 1, {"steps": steps}), 422)
    assert found["field"] == "steps[0].tensors['a/input'].amax"
    assert "float32" in found["expected"]


def test_too_many_steps(run: Client) -> None:
    steps = [{"step": step} for step in range(100, 100 + 4097)]
    assert "4,096" in problem(run.put("r", 1, {"steps": steps}), 422, field="steps")["expected"]


@pytest.mark.parametrize(
    "break_it",
    [
        lambda content: content[:-1],
        lambda content: content[: len(content) // 2],
        lambda content: content[:7],
        lambda content: content + b"x",
        lambda content: struct.pack("<Q", 2**62) + content[8:],
        lambda content: struct.pack("<Q", 5) + content[8:],
        lambda content: change_header(content, lambda h: h["step"].update(shape=[10**9])),
        lambda content: change_header(content, lambda h: h["step"].update(dtype="F64")),
        lambda content: change_header(content, lambda h: h["stat.amax"].update(data_offsets=[0, 2**40])),
        lambda content: change_header(content, lambda h: h["stat.amax"].update(data_offsets=[8, 8])),
        lambda content: change_header(content, lambda h: h["stat.amax"].update(shape=[3, 6])),
        lambda content: change_header(content, lambda h: h.pop("step")),
        lambda content: change_header(content, lambda h: h.pop("__metadata__")),
        lambda content: change_header(content, lambda h: h["__metadata__"].update(schema="other/9")),
        lambda content: change_header(content, lambda h: h["__metadata__"].update(scalars="[1]")),
        lambda content: change_header(content, lambda h: h["__metadata__"].update(scalars='["a","b"]')),
        lambda content: change_header(content, lambda h: h["__metadata__"].update(tensors="{}")),
        lambda content: change_header(
            content,
            lambda h: h["__metadata__"].update(tensors=json.dumps({"hash": "0" * 64, "table": TABLE})),
        ),
    ],
)
def test_truncated_and_lying_safetensors(run: Client, break_it: Callable[[bytes], bytes]) -> None:
    problem(run.put("r", 1, break_it(packed()), headers=SAFETENSORS), 422)


def test_a_table_that_was_never_sent_is_asked_for(run: Client) -> None:
    found = problem(run.put("r", 1, packed(with_table=False), headers=SAFETENSORS), 409)
    assert (found["reason"], found["expected_seq"]) == ("need_tensors", 1)


def test_a_safetensors_batch_with_its_table_and_then_without(client: Client) -> None:
    client.open_run("s")
    assert client.put("s", 0, packed(), headers=SAFETENSORS).json["expected_seq"] == 1
    later = batch_from_rows([{**row, "step": row["step"] + 6} for row in full_batch()])
    content = gzip.compress(wire_safetensors.encode(later, TABLE, with_table=False))
    assert client.put("s", 1, content, headers={**SAFETENSORS, "Content-Encoding": "gzip"}).status == 200
    assert lines(client.steps("s")) == as_stored(full_batch(12))
    tensors = client.get("/api/v1/runs/s/tensors").json["items"]
    assert [(t["name"], t["format"]) for t in tensors] == [(n, TABLE[n]["format"]) for n in TENSORS]


def test_wrong_token_before_everything_else(run: Client) -> None:
    for client in (Client(run.port, None), Client(run.port, "wrong"), Client(run.port, "t\u00e4\u00f6")):
        found = problem(client.put("nobody", 99, b"x" * (33 * MIB)), 401, field="Authorization")
        assert "token" in found["hint"]


def test_unknown_run_before_size(run: Client) -> None:
    problem(run.put("nobody", 0, b"x" * (33 * MIB)), 404, field="run_id")
    problem(run.get("/api/v1/runs/nobody/verdict"), 404, field="run_id")


def test_oversized_before_seq(run: Client) -> None:
    found = problem(run.put("r", 99, b"x" * (32 * MIB + 1)), 413, field="body")
    assert "32 MiB" in found["expected"]


def test_oversized_without_a_length_is_stopped_while_it_streams(run: Client) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", run.port, timeout=30)
    pieces = (b"x" * MIB for _ in range(40))
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    connection.request("PUT", "/api/v1/runs/r/ranks/0/batches/1", pieces, headers, encode_chunked=True)
    answer = connection.getresponse()
    assert answer.status == 413
    connection.close()


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_bomb_is_stopped_at_256_mib(run: Client, encoding: str) -> None:
    zeros = b"\0" * (257 * MIB)
    content = gzip.compress(zeros, 1) if encoding == "gzip" else zstandard.compress(zeros)
    found = problem(run.put("r", 1, content, headers={"Content-Encoding": encoding}), 413, field="body")
    assert "256 MiB unpacked" in found["expected"]


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_packed_bodies_are_unpacked_and_count_as_the_same_bytes(client: Client, encoding: str) -> None:
    client.open_run("s")
    content = body(rows(0, 5))
    sent = gzip.compress(content) if encoding == "gzip" else zstandard.compress(content)
    assert client.put("s", 0, sent, headers={"Content-Encoding": encoding}).status == 200
    assert client.put("s", 0, content).status == 200
    assert lines(client.steps("s")) == as_stored(rows(0, 5))


@pytest.mark.parametrize(
    ("encoding", "content"),
    [
        ("gzip", b"not gzip"),
        ("gzip", gzip.compress(body(rows(9, 1)))[:-9]),
        ("gzip", gzip.compress(body(rows(9, 1))) + b"more"),
        ("zstd", b"not zstd"),
        ("zstd", zstandard.compress(body(rows(9, 1)))[:-4]),
        ("zstd", b""),
    ],
)
def test_damaged_packing(run: Client, encoding: str, content: bytes) -> None:
    problem(run.put("r", 1, content, headers={"Content-Encoding": encoding}), 422, field="body")


def test_unknown_packing_and_unknown_type(run: Client) -> None:
    problem(run.put("r", 1, b"{}", headers={"Content-Encoding": "br"}), 415, field="Content-Encoding")
    problem(run.put("r", 1, b"{}", headers={"Content-Type": "text/csv"}), 415, field="Content-Type")


def test_gap_repeat_and_conflict(run: Client) -> None:
    gap = problem(run.put("r", 7, body(rows(3, 3))), 409, field="seq")
    assert (gap["reason"], gap["expected_seq"]) == ("gap", 1)
    repeat = run.put("r", 0, body(rows(0, 3)))
    assert (repeat.status, repeat.json["expected_seq"]) == (200, 1)
    conflict = problem(run.put("r", 0, body(rows(3, 3))), 409, field="seq")
    assert (conflict["reason"], conflict["expected_seq"]) == ("conflict", 1)
    damaged = run.put("r", 0, b"not gzip", headers={"Content-Encoding": "gzip"})
    assert problem(damaged, 409)["reason"] == "conflict"


def test_seq_is_judged_before_content(run: Client) -> None:
    assert problem(run.put("r", 5, b"not json"), 409)["reason"] == "gap"
    assert problem(run.put("r", 0, b"not json"), 409)["reason"] == "conflict"


@pytest.mark.parametrize(
    "path", ["ranks/-1/batches/1", "ranks/x/batches/1", "ranks/0/batches/99999999999999999999"]
)
def test_addresses_out_of_bounds(run: Client, path: str) -> None:
    problem(run.call("PUT", f"/api/v1/runs/r/{path}", body(rows(3, 1))), 422)


def test_a_connection_that_ends_in_the_middle_stores_nothing(run: Client) -> None:
    with socket.create_connection(("127.0.0.1", run.port)) as raw:
        head = (
            f"PUT /api/v1/runs/r/ranks/0/batches/1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        )
        raw.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n".encode())
        raw.sendall(b'{"steps": [')
    assert run.get("/api/v1/runs/r").json["ranks"][0]["expected_seq"] == 1


def test_names_with_markup_are_data(client: Client) -> None:
    name = "<script>alert('x')</script>&\"{{7*7}}"
    assert client.open_run("m", name=name, project=name).status == 201
    tensor = f"{name}/input"
    steps = [{"step": 1, name: 2.0, "tensors": {tensor: {"amax": 1.0}}}]
    assert client.put("m", 0, {"steps": steps}).status == 200
    assert client.steps("m") == [{"step": 1, name: 2.0, "tensors": {tensor: {"amax": 1.0}}}]
    for page in ("/", "/runs/m"):
        html = client.get(page).text
        assert "<script>alert" not in html
        assert "{{7*7}}" in html or "49" not in html


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"run_id": "a/b"}, "run_id"),
        ({"run_id": ".."}, "run_id"),
        ({"run_id": 5}, "run_id"),
        ({"name": "n" * 1025}, "run.name"),
        ({"name": "a\x00b"}, "run.name"),
        ({"baseline": "a b"}, "run.baseline"),
        ({"run_id": "me", "baseline": "me"}, "baseline"),
        ({"tensors": []}, "run.tensors"),
        ({"tensors": {"a/input": {"format": "float8"}}}, "run.tensors['a/input'].format"),
        ({"recipe": 5}, "run.recipe"),
        ({"ranks": 0}, "run.ranks"),
        ({"odd": "\ud800"}, "run"),
        ([], "run"),
    ],
)
def test_bad_descriptions_of_a_run(client: Client, fields: object, field: str) -> None:
    assert problem(client.call("POST", "/api/v1/runs", fields), 422)["field"] == field


def test_unpack_keeps_the_reason_for_later() -> None:
    found = unpack(b"not gzip", "gzip")
    assert found.fault is not None
    assert found.content == b""


def test_numbers_of_a_refused_batch_leave_no_trace(run: Client) -> None:
    assert run.put("r", 1, b'{"steps": [{"step": 9, "odd_one": 1}, {"step": 8}]}').status == 422
    assert "odd_one" not in run.get("/api/v1/runs/r/scalars").json["series"]


@pytest.mark.parametrize(
    ("field", "given", "expected"),
    [
        ("action", {"action": "explode"}, "'acknowledge', 'resolve', 'reopen', 'note' or 'not_the_cause'"),
        ("note", {"action": "note", "note": "x" * 4001}, "at most 4000 characters"),
        ("action", {}, "a value"),
        ("by", {"action": "resolve", "by": "me"}, "no field of this name"),
    ],
)
def test_what_is_expected_reads_as_a_sentence(
    run: Client, field: str, given: dict[str, str], expected: str
) -> None:
    found = problem(run.call("PATCH", "/api/v1/alerts/nope", given), 422, field=field)
    assert found["expected"] == expected
    assert found["detail"].startswith(f"{field}: expected {expected}, got ")
