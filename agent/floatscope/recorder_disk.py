"""Whether a path is on a disk of this machine: a store into a mapped page of another may wait."""

from __future__ import annotations

import os
from pathlib import Path

_MOUNTS = Path("/proc/self/mounts")
_REMOTE = frozenset(
    [
        "nfs",
        "nfs4",
        "lustre",
        "gpfs",
        "beegfs",
        "ceph",
        "cifs",
        "smb3",
        "afs",
        "9p",
        "virtiofs",
        "glusterfs",
        "panfs",
        "pvfs2",
        "orangefs",
        "wekafs",
        "fuse",
        "fuseblk",
    ]
)


def is_remote(path: Path) -> bool:
    """Whether the path is on a network or user-space file system, as far as the system says."""
    try:
        mounts = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return False
    return kind_of(os.path.realpath(path), mounts).partition(".")[0] in _REMOTE


def kind_of(path: str, mounts: str) -> str:
    """Type of the file system a path is on, from the text of /proc/mounts; empty if it is on none."""
    best, kind = -1, ""
    for line in mounts.splitlines():
        words = line.split(" ")
        if len(words) < 3:
            continue
        point = _unescaped(words[1]).rstrip("/")
        inside = path == point or path.startswith(point + "/")
        if inside and len(point) >= best:  # of two mounts at one place the later covers the earlier
            best, kind = len(point), words[2]
    return kind


def _unescaped(point: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        point = point.replace(code, character)
    return point
