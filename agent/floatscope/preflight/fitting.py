"""Makes a preflight's document fit into a run's description, the least telling parts left out first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from floatscope.preflight.check import Check
from floatscope.protocol.errors import ProtocolError
from floatscope.protocol.preflight_field import preflight_field

QUIET = ("pass", "not_applicable")
LEFT_OUT = "left_out"
"""Field that names what was left out."""


def fitting(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """The document, or as much of it as a run's description may hold; None where it is no such document."""
    for form in _forms(document):
        try:
            return preflight_field(form, field="preflight")
        except ProtocolError:
            continue
    return None


def _forms(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Ever smaller forms."""
    full = dict(document)
    yield full
    checks = full.get("checks")
    if not isinstance(checks, list):
        return
    short = full | {"checks": [_short(one) for one in checks], LEFT_OUT: ["texts of checks that pass"]}
    yield short
    short = {k: v for k, v in short.items() if k not in ("layers", "gemm", "recipes")}
    left = ["texts of checks that pass", "layers", "gemm", "recipes"]
    yield short | {LEFT_OUT: left}
    loud = [one for one in checks if _status(one) not in QUIET]
    loud.sort(key=lambda one: ("fail", "warn").index(_status(one)) if _status(one) in ("fail", "warn") else 2)
    for most in (len(loud), 200, 20):
        yield short | {"checks": loud[:most], LEFT_OUT: [*left, "checks"]}


def _short(one: Any) -> Any:
    if not isinstance(one, Mapping) or _status(one) not in QUIET:
        return one
    return Check(
        str(one.get("name", "")), str(one.get("area", "")), one["status"], str(one.get("read", "")), ""
    ).to_json()


def _status(one: Any) -> object:
    return one.get("status") if isinstance(one, Mapping) else None
