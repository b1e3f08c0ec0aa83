"""What a token may do, and what each address needs: one table for all of them.

A route that is not in the table needs ``admin``, so a new one is closed until somebody says who may use it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from floatscope_server.callers import ADMIN

INGEST = "ingest"
READ = "read"
WRITE = "write"
SCOPES = (INGEST, READ, WRITE, ADMIN)
ANY = "any"
"""Needs a valid token or session and no certain scope."""

_INCLUDED: Mapping[str, tuple[str, ...]] = {
    INGEST: (INGEST,),
    READ: (READ,),
    WRITE: (WRITE, READ),
    ADMIN: SCOPES,
}

_API = "/api/v1"
_RUN = f"{_API}/runs/{{run_id}}"

TABLE: Mapping[tuple[str, str], str] = {
    # what an agent does
    ("POST", f"{_API}/runs"): INGEST,
    ("PUT", f"{_RUN}/ranks/{{rank}}/batches/{{seq}}"): INGEST,
    ("POST", f"{_RUN}/finish"): INGEST,
    # runs
    ("GET", f"{_API}/runs"): READ,
    ("GET", _RUN): READ,
    ("PATCH", _RUN): WRITE,
    ("DELETE", _RUN): ADMIN,  # it does not come back
    ("GET", f"{_RUN}/verdict"): READ,
    ("GET", f"{_RUN}/scalars"): READ,
    ("GET", f"{_RUN}/tensors"): READ,
    ("GET", f"{_RUN}/series"): READ,
    ("GET", f"{_RUN}/heatmap"): READ,
    ("GET", f"{_RUN}/frame"): READ,
    ("GET", f"{_RUN}/histogram"): READ,
    ("GET", f"{_RUN}/rankmap"): READ,
    ("GET", f"{_RUN}/ticks"): READ,
    ("GET", f"{_RUN}/steps"): READ,
    ("GET", f"{_RUN}/what-if"): READ,
    ("GET", f"{_RUN}/advice"): READ,
    ("GET", f"{_API}/compare"): READ,
    ("GET", f"{_API}/search"): READ,
    ("GET", f"{_API}/events"): READ,
    # alerts and who is told of them
    ("GET", f"{_API}/alerts"): READ,
    ("GET", f"{_API}/alerts/{{alert_id}}"): READ,
    ("PATCH", f"{_API}/alerts/{{alert_id}}"): WRITE,
    ("POST", f"{_API}/alerts/actions"): WRITE,
    ("GET", f"{_API}/silences"): READ,
    ("GET", f"{_API}/silences/{{silence_id}}"): READ,
    ("POST", f"{_API}/silences"): WRITE,
    ("DELETE", f"{_API}/silences/{{silence_id}}"): WRITE,
    ("GET", f"{_API}/rules"): READ,
    ("GET", f"{_API}/rules/{{code}}"): READ,
    ("PUT", f"{_API}/rules/{{code}}/settings"): WRITE,
    ("DELETE", f"{_API}/rules/{{code}}/settings"): WRITE,
    ("POST", f"{_API}/rules/{{code}}/backtest"): WRITE,
    ("GET", f"{_API}/backtests"): READ,
    ("GET", f"{_API}/backtests/{{backtest_id}}"): READ,
    ("DELETE", f"{_API}/backtests/{{backtest_id}}"): WRITE,
    ("GET", f"{_API}/channels"): READ,
    ("GET", f"{_API}/channels/{{channel_id}}"): READ,
    ("POST", f"{_API}/channels"): ADMIN,  # it makes this server call an address
    ("PATCH", f"{_API}/channels/{{channel_id}}"): ADMIN,
    ("DELETE", f"{_API}/channels/{{channel_id}}"): ADMIN,
    ("POST", f"{_API}/channels/{{channel_id}}/test"): WRITE,
    ("GET", f"{_API}/channels/{{channel_id}}/deliveries"): READ,
    ("POST", f"{_API}/channels/{{channel_id}}/deliveries/{{number}}/retry"): WRITE,
    # who may do what
    ("GET", f"{_API}/me"): ANY,
    ("GET", f"{_API}/tokens"): ADMIN,
    ("POST", f"{_API}/tokens"): ADMIN,
    ("DELETE", f"{_API}/tokens/{{token_id}}"): ADMIN,
    ("GET", f"{_API}/audit"): ADMIN,
    ("GET", "/metrics"): READ,
    # pages
    ("GET", "/"): READ,
    ("GET", "/runs/{run_id}"): READ,
    ("GET", "/runs/{run_id}/tensors"): READ,
    ("GET", "/runs/{run_id}/tensors/{tensor:path}"): READ,
    ("GET", "/runs/{run_id}/report"): READ,
    ("GET", "/runs/{run_id}/advice"): READ,
    ("GET", "/runs/{run_id}/ruler"): READ,
    ("GET", "/compare"): READ,
    ("GET", "/compare/report"): READ,
    ("GET", "/alerts"): READ,
    ("GET", "/alerts/{alert_id}"): READ,
    ("GET", "/rules"): READ,
    ("GET", "/settings"): READ,
    ("GET", "/docs"): READ,
    ("GET", "/openapi.json"): READ,
    ("POST", "/logout"): ANY,
}

OPEN: frozenset[tuple[str, str]] = frozenset(
    (
        ("GET", "/healthz"),
        ("HEAD", "/healthz"),
        ("HEAD", "/readyz"),
        ("GET", "/readyz"),
        ("GET", "/login"),
        ("POST", "/login"),
        ("GET", "/static/{path:path}"),
    )
)
"""What answers without a token."""


def with_included(scopes: Iterable[str]) -> frozenset[str]:
    """The scopes with those they include: ``admin`` includes all, ``write`` includes ``read``."""
    return frozenset(inner for scope in scopes for inner in _INCLUDED.get(scope, ()))


def needed(method: str, path: str) -> str | None:
    """The scope that an address needs; None if it is not in the table.

    HEAD is GET. Parameters in the table stand for one part of the path.
    """
    wanted = "GET" if method == "HEAD" else method
    exact = TABLE.get((wanted, path))
    if exact is not None:
        return exact
    for (known, pattern), scope in _PATTERNS:
        if known == wanted and pattern.fullmatch(path):
            return scope
    return None


def template(method: str, path: str) -> str | None:
    """The address in the tables that a path stands for; None if there is none with this method."""
    wanted = "GET" if method == "HEAD" else method
    if (wanted, path) in TABLE or (wanted, path) in OPEN:
        return path
    if path.startswith("/static/"):
        return "/static/{path:path}"
    for (known, pattern), whole in _TEMPLATES:
        if known == wanted and pattern.fullmatch(path):
            return whole
    return None


def _pattern(template: str) -> re.Pattern[str]:
    """``{name}`` stands for one part of a path, ``{name:path}`` for any number of them."""
    parts = re.split(r"\{(\w+(?::path)?)\}", template)
    kinds = (".+" if name.endswith(":path") else "[^/]+" for name in parts[1::2])
    return re.compile(
        re.escape(parts[0]) + "".join(k + re.escape(p) for k, p in zip(kinds, parts[2::2], strict=True))
    )


_PATTERNS = tuple(((method, _pattern(path)), scope) for (method, path), scope in TABLE.items() if "{" in path)
_TEMPLATES = tuple(((method, _pattern(path)), path) for method, path in TABLE if "{" in path)
