"""What the flight recorder holds beside the steps: the step under way, how it ended, what it records."""

from __future__ import annotations

import json
import math
import os
import platform
import struct
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from floatscope.protocol.runinfo import RunInfo
from floatscope.protocol.strict_json import dumps

PHASES = ("starting", "in a step", "between steps")
STARTING, IN_STEP, BETWEEN = range(3)
DATA_ID_BYTES = 1024
SCALARS_BYTES = 2800  # with the rest of the slot less than its 4,072 bytes
MOST_SCALARS = 64  # of the step under way; the others come with its record
TRACEBACK_CHARS = 12_000
_NOW = struct.Struct("<qqddBH")


@dataclass(frozen=True)
class Now:
    """The step under way when the slot was last written.

    step: that began last, or None before the first.  ended: that ended last, at ended_time, with its scalars
    as far as the host knew them.  time: of writing; times are Unix seconds.  phase: index into PHASES.
    data_id: of the last batch.
    """

    step: int | None
    ended: int | None
    time: float
    ended_time: float
    phase: int
    data_id: str = ""
    scalars: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Ending:
    """How the run ended; each field empty or None where it is not known.

    status: finished, failed or crashed.  kind, message, traceback: of the exception.  signal: its name.
    """

    status: str | None = None
    reason: str | None = None
    kind: str = ""
    message: str = ""
    traceback: str = ""
    signal: str = ""
    time: float = math.nan

    def to_json(self) -> dict[str, Any]:
        """The fields that are known."""
        return {k: v for k, v in asdict(self).items() if v not in (None, "")}


def pack_now(
    step: int, ended: int, *, time: float, ended_time: float, phase: int, data_id: bytes, scalars: bytes
) -> bytes:
    """The slot's payload; -1 is no step. scalars: from ``pack_scalars``."""
    return _NOW.pack(step, ended, time, ended_time, phase, len(data_id)) + data_id + scalars


def pack_scalars(scalars: Mapping[str, float]) -> bytes:
    """The first scalars as JSON, NaN as a bare token; nothing if they are too long for the slot."""
    few = scalars if len(scalars) <= MOST_SCALARS else dict(islice(scalars.items(), MOST_SCALARS))
    text = json.dumps(few).encode()
    return text if len(text) <= SCALARS_BYTES else b""


def unpack_now(payload: bytes) -> Now | None:
    """The slot again; None if it cannot be."""
    if len(payload) < _NOW.size:
        return None
    step, ended, time, ended_time, phase, size = _NOW.unpack_from(payload)
    text = payload[_NOW.size + size :]
    if (
        phase >= len(PHASES)
        or not (math.isfinite(time) and math.isfinite(ended_time))
        or len(payload) < _NOW.size + size
    ):
        return None
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return None
    numbers = {k: v for k, v in found.items() if isinstance(v, float)} if isinstance(found, dict) else {}
    data_id = payload[_NOW.size : _NOW.size + size].decode("utf-8", "replace")
    known = step if step >= 0 else None
    return Now(known, ended if ended >= 0 else None, time, ended_time, phase, data_id, numbers)


def data_id_text(data_id: int | str) -> bytes:
    """What is kept of a batch's identifier: 1 kB of UTF-8 at most, cut between characters."""
    raw = str(data_id).encode("utf-8", "replace")
    return raw if len(raw) <= DATA_ID_BYTES else raw[:DATA_ID_BYTES].decode("utf-8", "ignore").encode()


def shortened(text: str) -> str:
    """A traceback without the middle of a long one, in valid Unicode."""
    if len(text) > TRACEBACK_CHARS:
        half = TRACEBACK_CHARS // 2
        text = f"{text[:half]}\n  ... {len(text) - 2 * half:,} characters left out ...\n{text[-half:]}"
    return text.encode("utf-8", "replace").decode().replace("\0", "")


def fault_path(path: Path) -> Path:
    """The fault handler's file beside a recorder, also beside one of an earlier life (``.recorder.1``)."""
    stem, _, age = path.name.partition(".recorder")
    return path.with_name(f"{stem}.fault.txt{age}")


def description(info: RunInfo, *, run_id: str, rank: int, coordinates: Mapping[str, int]) -> dict[str, Any]:
    """What the recorder is a record of. Modules are only looked at, never imported."""
    return {
        "run_id": run_id,
        "rank": rank,
        "coordinates": dict(coordinates),
        "versions": versions(),
        "process": process(os.getpid()),
        "run": info.to_json(),
    }


def fitting(full: Mapping[str, Any]) -> Iterator[bytes]:
    """The description as JSON in ever smaller forms, the whole one first."""
    run = full["run"]
    forms = [
        run,
        {k: v for k, v in run.items() if k != "tensors"},
        {k: v for k, v in run.items() if k not in ("tensors", "preflight")},
        {k: v for k, v in run.items() if k not in ("tensors", "preflight", "config")},
        {k: run[k] for k in ("name", "project") if k in run},
    ]
    for form in forms:
        left = sorted(set(run) - set(form))
        yield dumps({**full, "run": form, **({"left_out": left} if left else {})}).encode()


def versions() -> dict[str, str]:
    """Versions of what trains here, as far as it is loaded."""
    out = {"python": platform.python_version(), "system": f"{platform.system()} {platform.release()}"}
    for name in ("torch", "transformer_engine", "torchao", "numpy", "deepspeed", "lightning", "transformers"):
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            out[name] = version[:100]
    cuda = getattr(getattr(sys.modules.get("torch"), "version", None), "cuda", None)
    if isinstance(cuda, str):
        out["cuda"] = cuda[:100]
    driver = _first_line(Path("/proc/driver/nvidia/version"))
    if driver:
        out["nvidia_driver"] = driver
    return out


def process(pid: int) -> dict[str, Any]:
    """What tells whether a process is still there: host, boot, process id, and when that process began."""
    return {"host": platform.node(), "boot": _boot(), "pid": pid, "began": began(pid)}


def is_alive(told: Mapping[str, Any]) -> bool | None:
    """Whether the process that was described runs now; None on another machine or without /proc."""
    boot, began_at, pid = told.get("boot"), told.get("began"), told.get("pid")
    if boot and told.get("host") == platform.node() and boot != _boot():
        return False  # this machine has been started again since
    if not boot or boot != _boot() or not isinstance(pid, int) or began_at is None:
        return None
    return bool(began(pid) == began_at)


def began(pid: int) -> int | None:
    """Clock ticks after boot at which a process began; None if there is none or the system does not say."""
    line = _first_line(Path(f"/proc/{pid}/stat"), most=4096)
    fields = line.rpartition(")")[2].split()
    if len(fields) < 20 or fields[0] in ("Z", "X"):
        return None
    return int(fields[19]) if fields[19].isdecimal() else None


def _boot() -> str:
    return _first_line(Path("/proc/sys/kernel/random/boot_id"))


def _first_line(path: Path, *, most: int = 300) -> str:
    try:
        with open(path, "rb") as file:
            return file.readline(most).decode("utf-8", "replace").strip()
    except OSError:
        return ""
