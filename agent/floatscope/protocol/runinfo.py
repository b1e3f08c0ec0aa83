"""What is known about a run: the object of ``POST /runs`` and of a floatscope log's first line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from floatscope.protocol.errors import ProtocolError
from floatscope.protocol.formats import FORMATS
from floatscope.protocol.names import MAX_TENSORS, check_name, check_run_id
from floatscope.protocol.preflight_field import preflight_field
from floatscope.protocol.strict_json import whole

TensorTable = dict[str, dict[str, Any]]

STATUSES = ("running", "stalled", "finished", "failed", "crashed")
_MAX_TEXT_CHARS = 16_384  # a reason may carry a whole traceback, not a whole log
_MAX_COUNT = 2**31 - 1


@dataclass(frozen=True)
class RunInfo:
    """A run as described by whoever sends it; every field may be unknown (None, or an empty mapping).

    tensors: name -> {"format", "call_order", "recipe"}, each optional.  ``recipe["name"]`` is one of
    ``names.RECIPES``. preflight: the document ``floatscope.preflight/1`` of the run's machine.  extra: fields
    this version does not know, kept as they came.
    """

    name: str | None = None
    project: str | None = None
    baseline: str | None = None
    recipe: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    vocab_size: int | None = None
    ranks: int | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    status: str | None = None
    reason: str | None = None
    preflight: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: object, *, field: str = "run") -> RunInfo:
        """Reads the object; null fields count as not given. Raises ProtocolError naming the field."""
        if not isinstance(value, Mapping):
            raise ProtocolError(field, "an object that describes the run", value)
        given = {str(k): v for k, v in value.items() if v is not None}
        known: dict[str, Any] = {}
        for key in ("name", "project"):
            if key in given:
                known[key] = check_name(given.pop(key), field=f"{field}.{key}")
        if "baseline" in given:
            known["baseline"] = check_run_id(given.pop("baseline"), field=f"{field}.baseline")
        for key in ("vocab_size", "ranks"):
            if key in given:
                known[key] = whole(given.pop(key), field=f"{field}.{key}", low=1, high=_MAX_COUNT)
        for key in ("recipe", "config"):
            if key in given:
                known[key] = _mapping(given.pop(key), field=f"{field}.{key}")
        if "recipe" in known and "name" in known["recipe"]:
            check_name(known["recipe"]["name"], field=f"{field}.recipe.name")
        if "tensors" in given:
            known["tensors"] = tensor_table(given.pop("tensors"), field=f"{field}.tensors")
        if "preflight" in given:
            known["preflight"] = preflight_field(given.pop("preflight"), field=f"{field}.preflight")
        if "status" in given:
            known["status"] = _one_of(given.pop("status"), STATUSES, field=f"{field}.status")
        if "reason" in given:
            known["reason"] = text(given.pop("reason"), field=f"{field}.reason")
        return cls(**known, extra=given)

    def to_json(self) -> dict[str, Any]:
        """The object again, without the fields that are not known."""
        out: dict[str, Any] = dict(self.extra)
        for key in ("name", "project", "baseline", "vocab_size", "ranks", "status", "reason"):
            if getattr(self, key) is not None:
                out[key] = getattr(self, key)
        for key in ("recipe", "tensors", "config", "preflight"):
            if getattr(self, key):
                out[key] = {k: v for k, v in getattr(self, key).items()}
        return out

    def merged(self, later: RunInfo) -> RunInfo:
        """This description with a later one on top:

        tensors are merged, every other field that is given is replaced.
        """
        changes: dict[str, Any] = {
            "tensors": {**self.tensors, **later.tensors},
            "extra": {**self.extra, **later.extra},
        }
        for key in ("name", "project", "baseline", "vocab_size", "ranks", "status", "reason"):
            if getattr(later, key) is not None:
                changes[key] = getattr(later, key)
        for key in ("recipe", "config", "preflight"):
            if getattr(later, key):
                changes[key] = getattr(later, key)
        return replace(self, **changes)


def tensor_table(value: object, *, field: str) -> TensorTable:
    """Checks a table name -> {"format", "call_order", "recipe"}; unknown keys are kept.

    Raises ProtocolError.
    """
    table = _mapping(value, field=field)
    if len(table) > MAX_TENSORS:
        raise ProtocolError(field, f"at most {MAX_TENSORS:,} tensors", f"{len(table):,}")
    out: TensorTable = {}
    for name, row in table.items():
        check_name(name, field=f"{field} key")
        where = f"{field}[{name!r}]"
        row = {k: v for k, v in _mapping(row, field=where).items() if v is not None}
        if "format" in row:
            _one_of(row["format"], tuple(FORMATS), field=f"{where}.format")
        if "call_order" in row:
            row["call_order"] = whole(row["call_order"], field=f"{where}.call_order", low=0, high=_MAX_COUNT)
        if "recipe" in row:
            check_name(row["recipe"], field=f"{where}.recipe")
        out[name] = row
    return out


def text(value: object, *, field: str) -> str:
    """Free text, shortened to 16,384 characters; ProtocolError if it is no text or not valid Unicode."""
    if not isinstance(value, str):
        raise ProtocolError(field, "text", value)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ProtocolError(field, "valid Unicode text", value) from error
    return value.replace("\x00", "")[:_MAX_TEXT_CHARS]


def _mapping(value: object, *, field: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ProtocolError(field, "an object", value)
    return {str(k): v for k, v in value.items()}


def _one_of(value: object, allowed: tuple[str, ...], *, field: str) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise ProtocolError(field, "one of " + ", ".join(allowed), value)
    return value
