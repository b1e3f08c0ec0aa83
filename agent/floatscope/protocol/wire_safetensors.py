"""A batch as safetensors: the agent's way. Columns go over as they are; nothing in the body is executed or
trusted.

Tensors: ``step`` I64[T], ``time`` F64[T], ``scalars`` F64[T,K], ``scalars.present`` U8[T,ceil(K/8)] (bit k%8
of byte k//8), ``stat_step`` I64[D], per statistic ``stat.<name>`` F32[D,S] and ``stat.<name>.present``
U8[D,ceil(S/8)], optional ``hist_step`` I64[H] and ``hist_log2`` U32[H,S,64]. Metadata: ``schema``,
``scalars`` (JSON list of names), ``tensors`` (JSON: ``hash`` of the tensor table, and ``table`` the first
time), optional ``segment``. The S columns are the table's names, sorted by code point.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import safetensors
from numpy.typing import NDArray
from safetensors.numpy import save

from floatscope.protocol.batch import Batch, Bool, Int64
from floatscope.protocol.errors import NeedTensors, ProtocolError, TooLarge
from floatscope.protocol.json_rows import RESERVED
from floatscope.protocol.names import (
    HIST_BINS,
    MAX_JSON_VALUES,
    MAX_SCALARS,
    MAX_STATS,
    MAX_STEP,
    MAX_STEPS,
    MAX_UNPACKED_BYTES,
    check_name,
)
from floatscope.protocol.runinfo import TensorTable, tensor_table
from floatscope.protocol.strict_json import loads, refuse_too_many, whole
from floatscope.protocol.wire_json import MAX_SEGMENT

CONTENT_TYPE = "application/vnd.floatscope.batch+safetensors"
SCHEMA = "floatscope.batch/1"

_DTYPES: Mapping[str, type[np.generic]] = {
    "I64": np.int64, "F64": np.float64, "F32": np.float32, "U8": np.uint8, "U32": np.uint32,
}  # fmt: skip
_HASH_CHARS = 64


def canonical(table: TensorTable) -> str:
    """The table's canonical JSON: keys sorted, no spaces."""
    return json.dumps(table, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def table_hash(table: TensorTable) -> str:
    """SHA-256 (hex) of the table's canonical JSON in UTF-8."""
    return hashlib.sha256(canonical(table).encode()).hexdigest()


def encode(batch: Batch, table: TensorTable, *, with_table: bool, key: str | None = None) -> bytes:
    """The body for a batch.

    key: the table's hash, where it is known.  The table's names must be the batch's tensor names; lost steps
    go by JSON (ValueError).
    """
    if batch.lost is not None:
        raise ValueError("a hole of lost steps is sent as JSON")
    if tuple(sorted(table)) != batch.tensor_names:
        raise ValueError("the tensor table and the batch name different tensors")
    arrays: dict[str, NDArray[Any]] = {"step": batch.step, "time": batch.time, "scalars": batch.scalars}
    if not batch.scalars_present.all():
        arrays["scalars.present"] = _pack(batch.scalars_present)
    arrays["stat_step"] = batch.step[batch.stat_row]
    for name, values in batch.stats.items():
        arrays[f"stat.{name}"] = values
        if not batch.stats_present[name].all():
            arrays[f"stat.{name}.present"] = _pack(batch.stats_present[name])
    if len(batch.hist_row):
        arrays["hist_step"] = batch.step[batch.hist_row]
        arrays["hist_log2"] = batch.hist_log2
    tensors: dict[str, Any] = {"hash": table_hash(table) if key is None else key}
    if with_table:
        tensors["table"] = table
    metadata = {
        "schema": SCHEMA,
        "scalars": json.dumps(batch.scalar_names, ensure_ascii=False),
        "tensors": json.dumps(tensors, ensure_ascii=False),
    }
    if batch.segment is not None:
        metadata["segment"] = str(batch.segment)
    return _ordered(save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, metadata))


def _ordered(body: bytes) -> bytes:
    """The same file with its metadata sorted; safetensors writes it in an order of its own each time.

    A server takes a batch that is sent again, by another process too, only with the same bytes.
    """
    length = int.from_bytes(body[:8], "little")
    header = json.loads(body[8 : 8 + length])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # data begins at a multiple of 8 bytes
    return len(text).to_bytes(8, "little") + text + body[8 + length :]


def _pack(mask: Bool) -> NDArray[np.uint8]:
    return np.packbits(mask, axis=1, bitorder="little")


def decode(body: bytes, *, find_table: Callable[[str], TensorTable | None]) -> tuple[Batch, TensorTable]:
    """The batch of a body and its tensor table.

    find_table: the table sent before under a hash, or None.  Raises NeedTensors for an unknown hash, TooLarge
    for a body over 256 MiB, ProtocolError naming the field for everything else: lying headers, wrong dtypes
    or shapes, steps that do not ascend.
    """
    if len(body) > MAX_UNPACKED_BYTES:
        raise TooLarge("body", f"at most {MAX_UNPACKED_BYTES:,} bytes", f"{len(body):,}")
    try:
        entries = safetensors.deserialize(body)  # type: ignore[no-untyped-call]
    except (safetensors.SafetensorError, ValueError, OverflowError, MemoryError) as error:
        raise ProtocolError("body", "a whole safetensors file", str(error)) from error
    reader = _Reader({str(name): entry for name, entry in entries})
    metadata = _metadata(body)
    scalar_names = _scalar_names(metadata)
    table = _table(metadata, find_table)
    tensor_names = tuple(sorted(table))

    step = reader.array("step", "I64", (None,))
    if not 0 < len(step) <= MAX_STEPS:
        raise ProtocolError("step", f"1 to {MAX_STEPS:,} steps", f"{len(step):,}")
    _check_ascending(step)
    time = reader.array("time", "F64", step.shape)
    if np.isinf(time).any():
        raise ProtocolError("time", "Unix seconds, or NaN where there is none", "an infinity")
    scalars, scalars_present = reader.masked("scalars", "F64", (len(step), len(scalar_names)))
    stat_row = _rows_of(step, reader.optional("stat_step"), "stat_step")
    names = [n[5:] for n in reader.names() if n.startswith("stat.") and not n.endswith(".present")]
    if len(names) > MAX_STATS:
        raise ProtocolError("stat.*", f"at most {MAX_STATS} statistics", f"{len(names)}")
    stats, stats_present = {}, {}
    for name in sorted(names):
        check_name(name, field=f"stat.{name}")
        shape = (len(stat_row), len(tensor_names))
        stats[name], stats_present[name] = reader.masked(f"stat.{name}", "F32", shape)
    hist_row = _rows_of(step, reader.optional("hist_step"), "hist_step")
    hist_shape = (len(hist_row), len(tensor_names), HIST_BINS)
    hist_log2 = (
        reader.array("hist_log2", "U32", hist_shape)
        if len(hist_row)
        else np.empty((0, 0, HIST_BINS), np.uint32)
    )
    reader.refuse_rest()
    batch = Batch(
        step=step,
        time=time,
        scalar_names=scalar_names,
        scalars=scalars,
        scalars_present=scalars_present,
        tensor_names=tensor_names,
        stat_row=stat_row,
        stats=stats,
        stats_present=stats_present,
        hist_row=hist_row,
        hist_log2=hist_log2,
        segment=_segment(metadata),
    )
    return batch, table


@dataclass
class _Reader:
    """Takes arrays out of a parsed file and checks what each claims against what the others say."""

    entries: dict[str, Any]

    def names(self) -> list[str]:
        return list(self.entries)

    def optional(self, name: str) -> Int64 | None:
        return self.array(name, "I64", (None,)) if name in self.entries else None

    def array(self, name: str, dtype: str, shape: tuple[int | None, ...]) -> NDArray[Any]:
        entry = self.entries.pop(name, None)
        if entry is None:
            raise ProtocolError(name, f"a tensor {dtype}{_show(shape)}", "none")
        found = tuple(entry["shape"])
        fits = len(found) == len(shape) and all(
            want in (None, have) for want, have in zip(shape, found, strict=True)
        )
        if entry["dtype"] != dtype or not fits:
            raise ProtocolError(name, f"{dtype}{_show(shape)}", f"{entry['dtype']}{_show(found)}")
        return np.frombuffer(entry["data"], _DTYPES[dtype]).reshape(found)

    def masked(self, name: str, dtype: str, shape: tuple[int, int]) -> tuple[NDArray[Any], Bool]:
        """Values and presence; an absent ``.present`` means all are present.

        Values that are not present become 0.
        """
        values = self.array(name, dtype, shape)
        if f"{name}.present" not in self.entries:
            return values, np.ones(shape, bool)
        packed = self.array(f"{name}.present", "U8", (shape[0], (shape[1] + 7) // 8))
        present = np.unpackbits(packed, axis=1, count=shape[1], bitorder="little").astype(bool)
        return np.where(present, values, values.dtype.type(0)), present

    def refuse_rest(self) -> None:
        for name in self.entries:
            raise ProtocolError(name, "a tensor of schema " + SCHEMA, "an unknown one")


def _show(shape: tuple[int | None, ...]) -> str:
    return "[" + ",".join("any" if n is None else str(n) for n in shape) + "]"


def _metadata(body: bytes) -> dict[str, str]:
    length = int.from_bytes(
        body[:8], "little"
    )  # deserialize has checked that the header lies inside the body
    text = body[8 : 8 + length]
    refuse_too_many(text, most=MAX_JSON_VALUES, field="header")
    header = loads(text, field="header")
    metadata = header.get("__metadata__") or {}
    if metadata.get("schema") != SCHEMA:
        raise ProtocolError("__metadata__.schema", SCHEMA, metadata.get("schema"))
    return dict(metadata)


def _scalar_names(metadata: Mapping[str, str]) -> tuple[str, ...]:
    names = loads(metadata.get("scalars", "null"), field="__metadata__.scalars")
    if not isinstance(names, list) or len(names) > MAX_SCALARS:
        raise ProtocolError(
            "__metadata__.scalars", f"a JSON list of at most {MAX_SCALARS:,} names", metadata.get("scalars")
        )
    for index, name in enumerate(names):
        check_name(name, field=f"__metadata__.scalars[{index}]")
        if name in RESERVED:
            raise ProtocolError(
                f"__metadata__.scalars[{index}]", "a name that is not a key of the row itself", name
            )
    if len(set(names)) != len(names):
        raise ProtocolError("__metadata__.scalars", "every name once", metadata["scalars"])
    return tuple(names)


def _table(metadata: Mapping[str, str], find_table: Callable[[str], TensorTable | None]) -> TensorTable:
    tensors = loads(metadata.get("tensors", "null"), field="__metadata__.tensors")
    claimed = tensors.get("hash") if isinstance(tensors, dict) else None
    if not isinstance(claimed, str) or len(claimed) != _HASH_CHARS:
        raise ProtocolError(
            "__metadata__.tensors", '{"hash": SHA-256 in hex, "table": {...}}', metadata.get("tensors")
        )
    if tensors.get("table") is None:
        known = find_table(claimed)
        if known is None:
            raise NeedTensors(claimed)
        return known
    table = tensor_table(tensors["table"], field="__metadata__.tensors.table")
    try:
        actual = table_hash(table)
    except ValueError as error:  # a NaN or lone surrogate in a field this version does not know
        raise ProtocolError(
            "__metadata__.tensors.table", "finite numbers and valid Unicode", str(error)
        ) from error
    if actual != claimed:
        raise ProtocolError(
            "__metadata__.tensors.hash", f"{actual}, the hash of the table beside it", claimed
        )
    return table


def _segment(metadata: Mapping[str, str]) -> int | None:
    if "segment" not in metadata:
        return None
    value = loads(metadata["segment"], field="__metadata__.segment")
    return whole(value, field="__metadata__.segment", low=0, high=MAX_SEGMENT)


def _check_ascending(step: Int64) -> None:
    if step[0] < 0 or step[-1] > MAX_STEP:
        raise ProtocolError("step", f"steps from 0 to {MAX_STEP:,}", f"{step[0]:,} to {step[-1]:,}")
    falls = np.flatnonzero(step[1:] <= step[:-1])
    if len(falls):
        at = int(falls[0]) + 1
        raise ProtocolError(
            f"step[{at}]", f"a step above {step[at - 1]:,}, since steps ascend in a batch", int(step[at])
        )


def _rows_of(step: Int64, wanted: Int64 | None, field: str) -> Int64:
    """Rows of ``step`` at which the wanted steps stand; they must ascend and all be there."""
    if wanted is None or not len(wanted):
        return np.empty(0, np.int64)
    rows = np.searchsorted(step, wanted)
    bad = np.flatnonzero((rows >= len(step)) | (step[np.minimum(rows, len(step) - 1)] != wanted))
    if len(bad):
        raise ProtocolError(f"{field}[{int(bad[0])}]", "one of the batch's steps", int(wanted[bad[0]]))
    if (np.diff(rows) <= 0).any():
        raise ProtocolError(field, "steps that ascend", "a repeat or a step back")
    return rows.astype(np.int64)
