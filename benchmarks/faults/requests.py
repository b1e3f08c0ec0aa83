"""Requests made to hurt: each follows from a seed and its number, so that one alone can be made again."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import quote

import numpy as np
import zstandard

from benchmarks.faults.story import RECIPE, TABLE, batch
from floatscope.protocol import strict_json, wire_safetensors
from floatscope.protocol.json_rows import rows_from_batch
from tests.server.live import TOKEN

BOMB_BYTES = 300 * 2**20
BATCHES = 0.25  # share of requests that bring steps: theirs are the richest bodies
RANKS = 499  # of the run they are sent to, so that most seqs are free
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW")
WORDS = (
    "r", "alpha", "0", "1", "7", "-1", "9" * 30, "1e999", "NaN", "amax", "loss", "rms",
    "blocks.1.mlp.fc1/input", "<script>alert(1)</script>", "'; drop table run; --", "../../etc/passwd",
    "%00", "\x00", "\u202e", "\U0001f600", "", " ", "a" * 1100, "*", "all", "firing", "warning",
    "critical", "FS201", "FS999", "2026-01-01T00:00:00Z", "true", "null", "é", "\ud800", "0x10", "1_000",
    "٣", "+5", "1.5", "{{7*7}}", "${jndi:x}", "\r\nX-A: b",
)  # fmt: skip
NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2**31, 2**63 - 1, 2**63, 2**64, 10**400, 1e308, 1e-320, 0.1, True, False, None,
    float("nan"), float("inf"),
)  # fmt: skip
PIECES = (
    b"NaN", b"-Infinity", b"null", b"1e999", b"-1", b"9" * 400, b'"', b"{", b"[", b"\\ud800", b"\\u0000",
    b"\xff", b"true", b'"step"', b"\x00", b"1e39", b'"tensors"', b"[]", b"{}", b"18446744073709551616",
    b"<b>", b",,",
)  # fmt: skip
HEADERS = (
    "Accept", "Accept-Encoding", "Cookie", "Host", "Origin", "Referer", "If-None-Match", "Range",
    "Last-Event-ID", "X-Forwarded-For", "X-Forwarded-Proto", "Expect", "User-Agent", "Content-Language",
    "Sec-Fetch-Site", "Via",
)  # fmt: skip
TYPES = (
    "application/json",
    wire_safetensors.CONTENT_TYPE,
    "text/plain",
    "",
    "application/x-www-form-urlencoded",
)


@dataclass(frozen=True)
class Route:
    """One operation of the OpenAPI document. query: names of its parameters there."""

    method: str
    path: str
    query: tuple[str, ...] = ()


@dataclass(frozen=True)
class Asked:
    """A request as it is sent."""

    number: int
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | None

    def __str__(self) -> str:
        size = 0 if self.body is None else len(self.body)
        return f"no. {self.number}: {self.method} {self.path[:200]} {dict(self.headers)} {size} bytes"


class Fuzz:
    """Requests over all routes of an OpenAPI document. words: names it speaks of, as fields of bodies."""

    def __init__(self, document: Mapping[str, Any], *, seed: int, more: Sequence[Route] = ()) -> None:
        self._seed = seed
        self.routes = [*_routes(document), *more]
        self._batches = next((r for r in self.routes if "/batches/" in r.path), self.routes[0])
        self._fields = sorted(
            _fields(document) | {"run_id", "name", "tensors", "steps", "action", "note", "kind"}
        )

    def request(self, number: int) -> Asked:
        """The request of this number."""
        rng = random.Random(self._seed * 1_000_003 + number)
        route = rng.choice(self.routes) if rng.random() > BATCHES else self._batches
        method = route.method if rng.random() < 0.93 else rng.choice(METHODS)
        path = _filled(route.path, rng, number)
        if rng.random() < 0.03:
            path = "/" + "/".join(quote(_word(rng), safe="%") for _ in range(rng.randrange(1, 5)))
        asked = [name for name in route.query if rng.random() < 0.6]
        if rng.random() < 0.1:
            asked += [rng.choice(self._fields) for _ in range(rng.randrange(1, 4))]
        if asked:
            path += "?" + "&".join(f"{quote(name)}={quote(_word(rng))}" for name in asked)
        body, headers = self._body(route, method, rng)
        for _ in range(rng.randrange(3) if rng.random() < 0.3 else 0):
            headers[rng.choice(HEADERS)] = _header(_word(rng))
        if rng.random() < 0.95:
            headers["Authorization"] = f"Bearer {TOKEN}"
        elif rng.random() < 0.5:
            headers["Authorization"] = _header(_word(rng))
        return Asked(number, method, path, headers, body)

    def _body(self, route: Route, method: str, rng: random.Random) -> tuple[bytes | None, dict[str, str]]:
        if method in ("GET", "HEAD", "DELETE", "OPTIONS") and rng.random() < 0.95:
            return None, {}
        headers = {"Content-Type": TYPES[0]}
        draw = rng.random()
        if "/batches/" in route.path and rng.random() < 0.01:
            headers["Content-Encoding"] = encoding = rng.choice(("gzip", "zstd"))
            return bomb(encoding), headers
        if "/batches/" in route.path:
            kind = rng.randrange(2)
            body = _valid_batch(kind)
            headers["Content-Type"] = TYPES[kind]
        elif route.path in _VALID and draw < 0.6:
            body = json.dumps(_VALID[route.path]).encode()
        else:
            body = _json(_value(rng, self._fields, 3))
        if rng.random() < 0.6:
            body = mutated(body, rng)
        if rng.random() < 0.03:
            body = rng.randbytes(rng.randrange(300))
        if rng.random() < 0.003:
            body = b"[" * 100_000
        if rng.random() < 0.05:
            headers["Content-Type"] = rng.choice(TYPES)
        return _packed(body, headers, rng), headers


def mutated(content: bytes, rng: random.Random) -> bytes:
    """The body with a few random changes, some of which know what hurts."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at, change = rng.randrange(len(data) + 1), rng.randrange(5)
        if change == 0 and data:
            data[min(at, len(data) - 1)] ^= 1 << rng.randrange(8)
        elif change == 1:
            del data[at : at + rng.randrange(1, 40)]
        elif change == 2:
            data[at:at] = rng.choice(PIECES)
        elif change == 3:
            data[at : at + rng.randrange(1, 12)] = rng.choice(PIECES)
        else:
            data = data[:at]
    return bytes(data)


def _packed(body: bytes, headers: dict[str, str], rng: random.Random) -> bytes:
    draw = rng.random()
    if draw < 0.001:
        headers["Content-Encoding"] = kind = rng.choice(("gzip", "zstd"))
        return bomb(kind)
    if draw < 0.08:
        headers["Content-Encoding"] = kind = rng.choice(("gzip", "zstd", "identity", "br", "gzip, gzip"))
        if rng.random() < 0.7:
            body = gzip.compress(body, 1, mtime=0) if kind == "gzip" else zstandard.compress(body)
        return mutated(body, rng) if rng.random() < 0.3 else body
    return body


@cache
def bomb(kind: str) -> bytes:
    """Few bytes that unpack to more than the server takes."""
    content = bytes(BOMB_BYTES)
    return gzip.compress(content, 6, mtime=0) if kind == "gzip" else zstandard.compress(content)


@cache
def _valid_batch(kind: int) -> bytes:
    made = batch(np.random.default_rng(5), 10, 4, fault_at=12)
    if kind == 0:
        return strict_json.dumps({"steps": list(rows_from_batch(made))}).encode()
    return wire_safetensors.encode(made, TABLE, with_table=True)


_VALID: Mapping[str, Any] = {
    "/api/v1/runs": {
        "run_id": "r",
        "name": "r",
        "project": "p",
        "tensors": TABLE,
        "recipe": RECIPE,
        "config": {"a": 1},
    },
    "/api/v1/runs/{run_id}": {"name": "x", "project": "y", "baseline": "alpha"},
    "/api/v1/runs/{run_id}/finish": {"status": "finished", "reason": "<b>done</b>"},
    "/api/v1/alerts/{alert_id}": {"action": "acknowledge", "note": "seen"},
    "/api/v1/channels": {
        "kind": "webhook",
        "name": "c",
        "url": "https://example.invalid/x",
        "projects": ["p"],
    },
    "/api/v1/channels/{channel_id}": {
        "name": "d",
        "enabled": False,
        "quiet": {"zone": "UTC", "from": "22:00"},
    },
    "/api/v1/silences": {"run_id": "r", "cause": "bad_batch", "ends": "2030-01-01T00:00:00Z", "note": "n"},
    "/api/v1/tokens": {"name": "t", "scopes": ["read"], "expires": "2030-01-01T00:00:00Z"},
    "/api/v1/rules/{code}/settings": {"project": "p", "severity": "off"},
    "/api/v1/rules/{code}/backtest": {"project": "p", "severity": "warning"},
}


def _routes(document: Mapping[str, Any]) -> list[Route]:
    found = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            names = [p["name"] for p in operation.get("parameters", []) if p.get("in") == "query"]
            found.append(Route(method.upper(), path, tuple(names)))
    return found


def _fields(node: object) -> set[str]:
    """Names of properties anywhere in the document."""
    if isinstance(node, list):
        return set().union(*map(_fields, node))
    if not isinstance(node, dict):
        return set()
    own = set(node["properties"]) if isinstance(node.get("properties"), dict) else set()
    return own.union(*map(_fields, node.values()))


def _filled(path: str, rng: random.Random, number: int) -> str:
    parts = []
    for part in path.split("/"):
        if part.startswith("{"):
            usual = {"{run_id}": rng.choice(("alpha", "alpha", "r")), "{code}": "FS201"}
            usual |= {"{rank}": str(number % RANKS), "{seq}": "0" if rng.random() < 0.8 else "1"}
            word = usual.get(part, "1") if rng.random() < 0.75 else _word(rng)
            parts.append(quote(word, safe="", errors="surrogatepass"))
        else:
            parts.append(part)
    return "/".join(parts)


def _value(rng: random.Random, fields: Sequence[str], depth: int) -> Any:
    draw = rng.random()
    if depth == 0 or draw < 0.15:
        return rng.choice(NUMBERS) if rng.random() < 0.5 else rng.choice(WORDS)
    if draw < 0.3:
        return [_value(rng, fields, depth - 1) for _ in range(rng.randrange(4))]
    return {rng.choice(fields): _value(rng, fields, depth - 1) for _ in range(rng.randrange(6))}


def _json(value: object) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


def _word(rng: random.Random) -> str:
    word = rng.choice(WORDS)
    return word.encode("utf-8", "replace").decode()


def _header(word: str) -> str:
    """As http.client lets it through."""
    return "".join(c for c in word if c.isprintable() and ord(c) < 256) or "x"
