"""A captured step on disk: the batch, the random states before it, and what was known of it.

A folder with ``capture.json`` (this module) and ``batch.safetensors`` (the tensors). It appears under its
name when both files are complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from floatscope.protocol.errors import ProtocolError
from floatscope.protocol.strict_json import loads

SCHEMA = "floatscope.capture/1"
INFO_FILE = "capture.json"
TENSORS_FILE = "batch.safetensors"
MAX_INFO_BYTES = 4 * 2**20

BATCH_PREFIX = "batch."
"""Tensors of the batch: ``batch.<micro-batch>/<path of keys>``, such as ``batch.0/input_ids``."""
RANDOM_PREFIX = "random."
"""Random states before the first micro-batch: ``random.torch``, ``.cuda.<index>`` and ``.python``."""


@dataclass(frozen=True)
class CaptureInfo:
    """What ``capture.json`` says.

    reason: why it was saved.  finding: the one that asked for it, in short.  data_ids: of the micro-batches,
    None where not given.  left_out: parts of the batch that were too large or no tensors, by path.
    random: what belongs to the random states beside their tensors (positions, cached numbers).
    run: the run's description (recipe, config, versions).
    """

    run_id: str
    rank: int
    step: int
    time: float
    reason: str
    finding: Mapping[str, Any] | None = None
    data_ids: tuple[int | str | None, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    random: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The object of ``capture.json``."""
        return {"schema": SCHEMA, **vars(self), "data_ids": list(self.data_ids)}

    @classmethod
    def from_json(cls, value: object) -> CaptureInfo:
        """Reads the object. Raises ProtocolError naming the field."""
        if not isinstance(value, Mapping) or value.get("schema") != SCHEMA:
            raise ProtocolError("schema", f"{SCHEMA!r}", value)
        known: dict[str, Any] = {}
        for name, kind, expected in (
            ("run_id", str, "text"),
            ("rank", int, "a whole number"),
            ("step", int, "a whole number"),
            ("time", int | float, "seconds"),
            ("reason", str, "text"),
        ):
            known[name] = value.get(name)
            if not isinstance(known[name], kind) or isinstance(known[name], bool):
                raise ProtocolError(name, expected, known[name])
        for name in ("left_out", "values", "random", "run"):
            known[name] = value.get(name) or {}
            if not isinstance(known[name], Mapping):
                raise ProtocolError(name, "an object", known[name])
        finding, data_ids = value.get("finding"), value.get("data_ids") or []
        if finding is not None and not isinstance(finding, Mapping):
            raise ProtocolError("finding", "an object or null", finding)
        if not isinstance(data_ids, list):
            raise ProtocolError("data_ids", "a list", data_ids)
        ids = tuple(one if isinstance(one, int | str) else None for one in data_ids)
        return cls(**known, finding=finding, data_ids=ids)


def read_info(folder: Path) -> CaptureInfo:
    """The description of a capture. Raises ProtocolError naming the file and what is wrong, or OSError."""
    path = folder / INFO_FILE
    if path.stat().st_size > MAX_INFO_BYTES:
        raise ProtocolError(str(path), f"at most {MAX_INFO_BYTES:,} bytes", f"{path.stat().st_size:,} bytes")
    try:
        return CaptureInfo.from_json(loads(path.read_bytes()))
    except ProtocolError as error:
        raise ProtocolError(f"{path}: {error.field}", error.expected, error.got) from error
    except ValueError as error:
        raise ProtocolError(str(path), "a JSON object as written by floatscope", str(error)) from error
