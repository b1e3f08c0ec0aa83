"""What the machine does meanwhile: a figure means little without it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np


def load_average() -> str:
    """Of the last minute; above the number of cores, wall time says little."""
    return f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def cpu_s(pid: int) -> float:
    """CPU time of a process and all its descendants so far, those that ended included."""
    ticks = 0
    for found in (pid, *descendants(pid)):
        try:
            parts = Path(f"/proc/{found}/stat").read_text().rpartition(") ")[2].split()
        except OSError:
            continue
        ticks += sum(map(int, parts[11:15] if found == pid else parts[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> list[int]:
    """Children, their children, and so on."""
    found = []
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []
    for task in tasks:
        try:
            children = (task / "children").read_text().split()
        except OSError:
            continue
        for child in map(int, children):
            found += [child, *descendants(child)]
    return found


def peak_mb(pid: int) -> float:
    """Most memory the process has held so far, in MB."""
    return _status_mb(pid, "VmHWM")


def rss_mb(pid: int) -> float:
    """Memory the process holds now, in MB."""
    return _status_mb(pid, "VmRSS")


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def forget_files(folder: Path) -> None:
    """Asks the system to drop the files from its cache, so that the next read comes from the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def quantiles_ms(times_s: Sequence[float], *shares: float) -> list[float]:
    """Quantiles of times in s, as ms; NaN without any."""
    if not len(times_s):
        return [float("nan")] * len(shares)
    return [float(np.quantile(np.asarray(times_s), share)) * 1e3 for share in shares]


def verdict(got: float, target: float, *, at_least: bool) -> str:
    """``met`` or ``missed``."""
    return "met" if (got >= target if at_least else got <= target) else "missed"


def _status_mb(pid: int, name: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1024
    return float("nan")
