"""Asks every GPU the same question and says the answers in one line: GPUs with the same answer together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from floatscope.preflight.check import Check, Status
from floatscope.preflight.facts import GpuFacts
from floatscope.preflight.nvml_values import NOT_SUPPORTED
from floatscope.preflight.table_reading import worst


@dataclass(frozen=True)
class Verdict:
    """What one GPU's reading means.  read: in words, without the GPU.  why: "" for the check's own."""

    status: Status
    read: str
    why: str = ""
    do: str = ""


def over_gpus(
    name: str,
    gpus: Sequence[GpuFacts],
    judge: Callable[[GpuFacts], Verdict],
    *,
    why: str,
    source: str,
) -> Check:
    """One check for all GPUs: its status is the worst of theirs. ``gpus`` has at least one."""
    groups: dict[Verdict, list[int]] = {}
    for gpu in gpus:
        groups.setdefault(judge(gpu), []).append(gpu.index)
    status = worst([verdict.status for verdict in groups])
    told = [verdict for verdict in groups if verdict.status == status]
    return Check(
        name,
        "gpu",
        status,
        "; ".join(f"{_gpus(indices)}: {verdict.read}" for verdict, indices in groups.items()),
        "; ".join(dict.fromkeys(verdict.why or why for verdict in told)),
        "; ".join(dict.fromkeys(verdict.do for verdict in told if verdict.do)),
        source,
    )


def missing(gpu: GpuFacts, reading: str) -> Verdict:
    """For a reading that is not there: not applicable where the GPU has no such thing, else unknown."""
    reason = gpu.failed.get(reading, "")
    if reason.startswith(NOT_SUPPORTED):
        return Verdict("not_applicable", "the GPU does not offer it")
    if not reason:
        reason = gpu.failed.get("handle") or "NVML was not asked"
    return Verdict("unknown", f"not read: {reason}", do="run preflight as root, or ask nvidia-smi -q")


def number(gpu: GpuFacts, key: str) -> float | None:
    """A reading that is a number, else None."""
    value: Any = gpu.values.get(key)
    return float(value) if isinstance(value, int | float) else None


def _gpus(indices: Sequence[int]) -> str:
    """ "GPU 0-3, 5"."""
    spans: list[list[int]] = []
    for index in sorted(indices):
        if spans and index == spans[-1][1] + 1:
            spans[-1][1] = index
        else:
            spans.append([index, index])
    return "GPU " + ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
