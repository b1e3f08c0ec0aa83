"""A batch as JSON: ``{"steps": [...]}``, for anyone with curl."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from floatscope.protocol.batch import Batch, lost_batch
from floatscope.protocol.errors import ProtocolError
from floatscope.protocol.json_rows import batch_from_rows, rows_from_batch
from floatscope.protocol.names import MAX_JSON_VALUES, MAX_STEP
from floatscope.protocol.strict_json import dumps, loads, refuse_too_many, whole

CONTENT_TYPE = "application/json"
MAX_SEGMENT = 2**31 - 1


def encode(batch: Batch, *, rank: int = 0) -> bytes:
    """The body for a batch."""
    body: dict[str, Any] = {"steps": list(rows_from_batch(batch, rank=rank))}
    if batch.segment is not None:
        body["segment"] = batch.segment
    if batch.lost is not None:
        body["lost"] = {"first_step": batch.lost[0], "last_step": batch.lost[1]}
    return dumps(body).encode()


def decode(body: bytes, *, rank: int) -> Batch:
    """The batch of a body. Raises ProtocolError naming what is wrong where."""
    refuse_too_many(body, most=MAX_JSON_VALUES)
    value = loads(body)
    if not isinstance(value, Mapping):
        raise ProtocolError("body", 'an object {"steps": [...]}', value)
    steps = value.get("steps")
    if not isinstance(steps, list):
        raise ProtocolError("steps", "a list of step objects", steps)
    segment = value.get("segment")
    if segment is not None:
        segment = whole(segment, field="segment", low=0, high=MAX_SEGMENT)
    lost = value.get("lost")
    if lost is None:
        if not steps:
            raise ProtocolError("steps", 'at least one step, or "lost" beside an empty list', "an empty list")
        return replace(batch_from_rows(steps, rank=rank), segment=segment)
    if steps:
        raise ProtocolError("lost", 'an empty "steps" beside it', f"{len(steps):,} steps")
    if not isinstance(lost, Mapping):
        raise ProtocolError("lost", '{"first_step": ..., "last_step": ...}', lost)
    first = whole(lost.get("first_step"), field="lost.first_step", low=0, high=MAX_STEP)
    last = whole(lost.get("last_step"), field="lost.last_step", low=first, high=MAX_STEP)
    return replace(lost_batch(first, last), segment=segment)
