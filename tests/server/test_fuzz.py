"""Random and mutated requests: never a 500, never a lost or changed batch."""

from __future__ import annotations

import contextlib
import gzip
import random
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from floatscope.protocol import wire_safetensors
from floatscope.protocol.errors import ProtocolError
from floatscope.protocol.json_rows import batch_from_rows
from floatscope_server.body import unpack
from floatscope_server.errors import Problem
from tests.server.live import Client
from tests.server.samples import TABLE, TENSORS, as_stored, body, lines, rows

TYPES = ("application/json", wire_safetensors.CONTENT_TYPE, "text/plain", "")
ENCODINGS = (None, "gzip", "zstd", "identity", "odd")
REQUESTS = 350
SEED = 20
ODD_TEXTS = (
    b"NaN", b"-Infinity", b"null", b"1e999", b"-1", b"9" * 400, b'"', b"{", b"[", b"\\ud800", b"\\u0000",
    b"\xff", b"true", b'"step"', b"\x00", b"1e39", b'"tensors"', b"[]", b"{}", b"18446744073709551616",
)  # fmt: skip


def valid() -> dict[str, bytes]:
    """A valid body of each kind."""
    steps: list[dict[str, Any]] = [
        {"step": 9, "loss": 1.0, "tensors": {name: {"amax": 1.0, "scale": 2.0} for name in TENSORS}},
        {"step": 10, "loss": 1.0},
    ]
    packed = wire_safetensors.encode(batch_from_rows(steps), TABLE, with_table=True)
    return {TYPES[0]: body(steps), TYPES[1]: packed}


def mutated(content: bytes, rng: random.Random) -> bytes:
    """The body with a few random changes, some of which know what hurts."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        change = rng.randrange(5)
        if change == 0 and data:
            data[min(at, len(data) - 1)] ^= 1 << rng.randrange(8)
        elif change == 1:
            del data[at : at + rng.randrange(1, 40)]
        elif change == 2:
            data[at:at] = rng.choice(ODD_TEXTS)
        elif change == 3:
            data[at : at + rng.randrange(1, 12)] = rng.choice(ODD_TEXTS)
        else:
            data = data[:at]
    return bytes(data)


def test_hundreds_of_mutated_batches(client: Client) -> None:
    rng = random.Random(SEED)
    client.open_run("r", tensors=TABLE)
    kept = rows(0, 3)
    assert client.put("r", 0, body(kept)).status == 200
    seq = 1
    statuses: dict[int, int] = {}
    for _ in range(REQUESTS):
        kind, content = rng.choice(list(valid().items()))
        headers = {"Content-Type": kind if rng.random() < 0.9 else rng.choice(TYPES)}
        content = mutated(content, rng) if rng.random() < 0.95 else rng.randbytes(rng.randrange(200))
        encoding = rng.choice(ENCODINGS) if rng.random() < 0.2 else None
        if encoding is not None:
            headers["Content-Encoding"] = encoding
            if rng.random() < 0.7:
                content = gzip.compress(content) if encoding == "gzip" else zstandard.compress(content)
        answer = client.put("r", seq, content, headers=headers)
        statuses[answer.status] = statuses.get(answer.status, 0) + 1
        assert answer.status in (200, 400, 409, 413, 415, 422), answer.text
        if answer.status == 200:
            seq = answer.json["expected_seq"]
        else:
            assert answer.json["detail"]
    assert statuses[422] > REQUESTS / 4
    assert statuses[200] > 0  # some changes hit only a number
    shown = client.get("/api/v1/runs/r").json
    assert shown["ranks"][0]["expected_seq"] == seq
    assert shown["diagnosis_error"] is None
    assert client.put("r", 0, body(kept)).status == 200
    first = client.steps("r", "?to=2&segment=0")
    assert lines(first) == as_stored(kept)
    for path in ("scalars", "tensors", "heatmap?stat=amax", "verdict", "series?tensor=x&stat=amax"):
        assert client.get(f"/api/v1/runs/r/{path}").status == 200
    assert client.get("/runs/r").status == 200


def test_odd_addresses_and_queries(client: Client) -> None:
    rng = random.Random(SEED)
    client.open_run("r")
    client.put("r", 0, body(rows(0, 3)))
    alphabet = [
        "r",
        "runs",
        "%00",
        "%ff",
        "..",
        "a" * 300,
        "-1",
        "9" * 30,
        "%F0%9F%98%80",
        "'",
        "*",
        " ",
        "%2F",
        "0",
    ]
    paths = [
        "/api/v1/runs/{}",
        "/api/v1/runs/{}/verdict",
        "/api/v1/alerts/{}",
        "/api/v1/tokens/{}",
        "/runs/{}",
        "/static/{}",
        "/{}",
    ]
    queries = [
        "/api/v1/runs?cursor={}&project={}",
        "/api/v1/runs/r/scalars?names={}&points={}",
        "/api/v1/runs/r/series?tensor={}&stat={}",
        "/api/v1/runs/r/heatmap?stat={}&role={}",
        "/api/v1/runs/r/steps?from={}&to={}",
        "/api/v1/runs/r/scalars?rank={}&segment={}",
        "/api/v1/alerts?since={}&state={}",
        "/?project={}&x={}",
        "/runs/r?at={}&y={}",
        "/login?next={}&failed={}",
        "/api/v1/audit?action={}&cursor={}",
        "/api/v1/audit?who={}&since={}",
    ]
    for _ in range(150):
        template = rng.choice(paths + queries)
        path = template.format(rng.choice(alphabet), rng.choice(alphabet)).replace(" ", "%20")
        answer = client.call(rng.choice(["GET", "GET", "GET", "DELETE", "PATCH", "POST"]), path)
        assert answer.status < 500, (path, answer.text)
    assert client.get("/healthz").status == 200


@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("/api/v1/runs", "POST"),
        ("/api/v1/runs/r", "PATCH"),
        ("/api/v1/runs/r/finish", "POST"),
        ("/api/v1/channels", "POST"),
        ("/api/v1/alerts/x", "PATCH"),
        ("/api/v1/tokens", "POST"),
        ("/login", "POST"),
    ],
)
def test_odd_bodies(client: Client, path: str, method: str) -> None:
    rng = random.Random(SEED)
    client.open_run("r")
    good = (
        b'{"run_id": "r2", "name": "x", "status": "finished", "action": "note", "note": "y", "kind": "slack"}'
    )
    bodies = [
        b"",
        b"null",
        b"[]",
        b"5",
        b'"x"',
        b"[" * 50_000,
        b'{"name": "' + b"n" * 2000 + b'"}',
        *ODD_TEXTS,
    ]
    for content in [*bodies, *(mutated(good, rng) for _ in range(40))]:
        answer = client.call(method, path, content)
        assert answer.status < 500, (content[:80], answer.text)


@given(st.binary(max_size=400), st.sampled_from(ENCODINGS))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_unpacking_never_raises(sent: bytes, encoding: str | None) -> None:
    found = unpack(sent, encoding)
    assert found.fault is None or isinstance(found.fault, Problem)
    assert len(found.digest) == 32


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_decoding_raises_nothing_but_protocol_errors(data: st.DataObject) -> None:
    content = bytearray(valid()[TYPES[1]])
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        wire_safetensors.decode(bytes(content), find_table=lambda _digest: None)
