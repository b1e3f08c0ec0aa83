"""What a process holds, as the kernel says."""

from __future__ import annotations

import os
from pathlib import Path


def rss_mib(pid: int) -> int:
    """Resident memory now."""
    return _field(pid, "VmRSS") // 1024


def peak_mib(pid: int) -> int:
    """The most it ever was resident."""
    return _field(pid, "VmHWM") // 1024


def threads(pid: int) -> int:
    return _field(pid, "Threads")


def descriptors(pid: int) -> int:
    """Open files and sockets."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def _field(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise ValueError(f"process {pid} has no {name}")
