"""What the driver reported of the GPUs since the machine started: XIDs in the kernel's log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from floatscope.preflight.check import Check, Status
from floatscope.preflight.facts import Facts, Wanted
from floatscope.preflight.table_reading import read_table, worst
from floatscope.probes.gpu_errors import XIDS


def xid_checks(facts: Facts, wanted: Wanted) -> list[Check]:
    """One check; none where there is neither an NVIDIA GPU nor an XID."""
    del wanted
    found = facts.libraries.get("xids")
    has_gpu = any(not gpu.arch.startswith("gfx") for gpu in facts.gpus)
    if not isinstance(found, list | tuple):
        return [_unread(facts)] if has_gpu else []
    counts: Counter[int] = Counter(
        event["xid"] for event in found if isinstance(event, Mapping) and isinstance(event.get("xid"), int)
    )
    if not counts and not has_gpu:
        return []
    return [_judged(counts)]


def _judged(counts: Counter[int]) -> Check:
    table = read_table("xids")
    if not counts:
        return Check("gpu.xid", "gpu", "pass", "no XID in the kernel's log", _WHY, "", table["catalogue"])
    rows: dict[int, Mapping[str, Any]] = {row["xid"]: row for row in table["xids"]}
    statuses: list[Status] = [rows[xid]["status"] if xid in rows else "warn" for xid in counts]
    status = worst(statuses)
    read = "; ".join(
        f"XID {xid}, {count} times: {_meaning(xid, rows.get(xid))}" for xid, count in counts.items()
    )
    todo = [
        _do(xid, rows.get(xid))
        for xid in counts
        if (rows[xid]["status"] if xid in rows else "warn") == status
    ]
    sources = [str(rows[xid]["source"]) for xid in counts if xid in rows]
    return Check(
        "gpu.xid",
        "gpu",
        status,
        read,
        _WHY,
        "; ".join(dict.fromkeys(one for one in todo if one)),
        "; ".join(dict.fromkeys([*sources, table["catalogue"]])),
    )


_WHY = "an XID tells of a fault of the GPU, the driver or a program since the machine started"


def _meaning(xid: int, row: Mapping[str, Any] | None) -> str:
    if row is None:  # the agent has words for some that have no grade here
        return f"{XIDS[xid]} (not graded)" if xid in XIDS else "not in our list"
    return row["meaning"] if row["verified"] else f"{row['meaning']} (grade not confirmed)"


def _do(xid: int, row: Mapping[str, Any] | None) -> str:
    return f"look XID {xid} up in NVIDIA's catalogue" if row is None else str(row["do"])


def _unread(facts: Facts) -> Check:
    reason = facts.failed.get("xids", "not asked")
    do = "run preflight as root, or: sudo dmesg | grep 'NVRM: Xid'"
    read = f"the kernel's log was not read: {reason}"
    return Check("gpu.xid", "gpu", "unknown", read, _WHY, do, read_table("xids")["catalogue"])
