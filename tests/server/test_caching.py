"""Answers that a client has already: 304 until something was stored, and never somebody else's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.server.live import Client
from tests.server.samples import TABLE, TENSORS, body, rows, send

READS = (
    "verdict",
    "scalars",
    f"series?tensor={TENSORS[0]}&stat=amax",
    "heatmap?stat=amax",
    "tensors",
    "frame",
)


def asked(client: Client, path: str, etag: str | None) -> Any:
    headers: Mapping[str, str] = {} if etag is None else {"If-None-Match": etag}
    return client.call("GET", f"/api/v1/runs/r/{path}", headers=headers)


@pytest.mark.parametrize("path", READS)
def test_what_has_not_changed_is_not_sent_again(client: Client, path: str) -> None:
    client.open_run("r", tensors=TABLE)
    send(client, "r", rows(0, 16))
    first = asked(client, path, None)
    assert first.status == 200
    assert first.headers["cache-control"] == "private, no-cache"
    etag = first.headers["etag"]
    for given in (etag, f'"x", {etag}', etag.removeprefix("W/")):
        same = asked(client, path, given)
        assert (same.status, same.content, same.headers["etag"]) == (304, b"", etag)
    assert asked(client, path, '"other"').status == 200
    client.put("r", 2, body([{"step": 16, "loss": 9.0, "tensors": {name: {"amax": 5.0} for name in TABLE}}]))
    after = asked(client, path, etag)
    assert (after.status, after.headers["etag"] != etag) == (200, True)
    assert after.content != first.content


def test_another_question_has_another_tag(client: Client) -> None:
    client.open_run("r", tensors=TABLE)
    send(client, "r", rows(0, 16))
    tags = {
        asked(client, f"series?tensor={name}&stat={stat}&to={to}", None).headers["etag"]
        for name in TENSORS[:2]
        for stat in ("amax", "scale")
        for to in (3, 9)
    }
    assert len(tags) == 8


def test_a_run_of_the_same_name_is_another_run(client: Client) -> None:
    client.open_run("r")
    send(client, "r", rows(0, 8))
    etag = asked(client, "scalars", None).headers["etag"]
    client.call("DELETE", "/api/v1/runs/r")
    assert asked(client, "scalars", etag).status == 404
    client.open_run("r")
    send(client, "r", rows(0, 8, seed=1))
    assert asked(client, "scalars", etag).status == 200


def test_a_tag_opens_no_door(client: Client) -> None:
    client.open_run("r")
    etag = asked(client, "scalars", None).headers["etag"]
    stranger = Client(client.port, None)
    assert asked(stranger, "scalars", etag).status == 401


def test_packed_or_not_it_is_the_same_answer(client: Client) -> None:
    document = client.get("/openapi.json")
    packed = client.call("GET", "/openapi.json", headers={"Accept-Encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.json == document.json
    headers = {"Accept-Encoding": "gzip", "If-None-Match": packed.headers["etag"]}
    assert client.call("GET", "/openapi.json", headers=headers).status == 304
