"""Writes the binary logs of TensorBoard, W&B and MLflow, byte by byte in the manner of their formats."""

from __future__ import annotations

import json
import sqlite3
import struct
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from floatscope_diagnostics.readers.crc32c import crc32c, masked

BLOCK = 1 << 15


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def field(number: int, value: int | float | bytes | str, *, double: bool = False) -> bytes:
    """One protobuf field: an int as varint, a float as fixed32 or fixed64, bytes and text with a length."""
    if isinstance(value, float):
        packed = struct.pack("<d" if double else "<f", value)
        return varint(number << 3 | (1 if double else 5)) + packed
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def tfrecord(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked(crc32c(length))) + data + struct.pack("<I", masked(crc32c(data)))


def event(step: int | None, time: float, *values: bytes) -> bytes:
    """A TFRecord of an Event with these Summary.Values."""
    body = field(1, time, double=True)
    if step is not None:
        body += field(2, step)
    return tfrecord(body + field(5, b"".join(field(1, v) for v in values)))


def first_event() -> bytes:
    return tfrecord(field(1, 1.7e9, double=True) + field(3, "brain.Event:2"))


def simple(tag: str, value: float) -> bytes:
    return field(1, tag) + field(2, value)


def tensor(tag: str, proto: bytes) -> bytes:
    """A scalar of version 2: the value is a TensorProto."""
    plugin = field(1, field(1, "scalars"))
    return field(1, tag) + field(9, plugin) + field(8, proto)


def events(curves: Mapping[str, Mapping[int, float]]) -> bytes:
    """An event file with the curves, step by step."""
    steps = sorted({s for points in curves.values() for s in points})
    out = [first_event()]
    for s in steps:
        values = [simple(tag, points[s]) for tag, points in curves.items() if s in points]
        out.append(event(s, 1.7e9 + s, *values))
    return b"".join(out)


def block_log(records: Iterable[bytes]) -> bytes:
    """W&B's file: a header, then LevelDB's log format with plain CRC-32."""
    out = bytearray(b":W&B\xe1\xbe\x00")
    for record in records:
        left, first = record, True
        while True:
            room = BLOCK - len(out) % BLOCK
            if room < 7:
                out += bytes(room)
                continue
            part, left = left[: room - 7], left[room - 7 :]
            kind = 1 if first and not left else 2 if first else 3 if left else 4
            crc = zlib.crc32(part, zlib.crc32(bytes((kind,))))
            out += struct.pack("<IHB", crc, len(part), kind) + part
            first = False
            if not left:
                break
    return bytes(out)


def wandb_item(key: str, value: object) -> bytes:
    return field(1, field(1, key) + field(16, json.dumps(value)))


def wandb_run(
    rows: Iterable[Mapping[str, Any]], *, name: str = "toy", exit_code: int | None = 0, filler: int = 0
) -> bytes:
    """A ``.wandb`` file: header, run, history, output of ``filler`` bytes, exit."""
    records = [field(1, 1) + field(17, field(8, name) + field(3, "p") + field(4, wandb_item("lr", 0.1)))]
    for k, row in enumerate(rows):
        step = row.get("_step", k)
        items = b"".join(wandb_item(key, v) for key, v in {"_step": step, **row}.items())
        records.append(field(1, k + 2) + field(2, items + field(2, field(1, step))))
        if filler:
            records.append(field(13, field(3, "x" * filler)))
    if exit_code is not None:
        records.append(field(18, field(1, exit_code)))
    return block_log(records)


def mlflow_database(path: Path, runs: Mapping[str, Iterable[tuple[str, int, float]]]) -> Path:
    """An SQLite file with MLflow's tables. runs: name -> (metric, step, value)."""
    with sqlite3.connect(path) as db:
        db.executescript(
            "CREATE TABLE experiments (experiment_id INTEGER PRIMARY KEY, name TEXT);"
            "CREATE TABLE runs (run_uuid TEXT PRIMARY KEY, name TEXT, status TEXT, start_time BIGINT,"
            " experiment_id INTEGER);"
            "CREATE TABLE metrics (key TEXT, value FLOAT, timestamp BIGINT, run_uuid TEXT, step BIGINT,"
            " is_nan BOOLEAN);"
            "INSERT INTO experiments VALUES (1, 'exp');"
        )
        for k, (name, points) in enumerate(runs.items()):
            db.execute("INSERT INTO runs VALUES (?, ?, 'FINISHED', ?, 1)", (f"id{k}", name, k))
            for at, (key, step, value) in enumerate(points):
                nan = value != value
                db.execute(
                    "INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)",
                    (key, 0.0 if nan else value, 1_700_000_000_000 + at, f"id{k}", step, nan),
                )
    db.close()
    return path
