"""XID events of this boot, from the kernel's log: what the driver reported of a GPU before we came."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable

DEVICE = "/dev/kmsg"

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]{4,20})[^)]{0,60}\): (\d{1,4})\b")
_MAX_EVENTS = 1000
_MAX_BYTES = 16 * 2**20
_MAX_RECORD = 8192  # a record of /dev/kmsg is never longer (kernel, CONSOLE_EXT_LOG_MAX)
_LIMIT_S = 0.5


def read_xids(read: Callable[[], str] | None = None) -> list[dict[str, object]]:
    """XIDs in the order they came, each with "xid" and "pci", at most 1,000.

    Raises OSError (mostly PermissionError) where the log cannot be read: that is not the same as no XIDs.
    """
    text = (read or _kernel_log)()
    found = []
    for match in _XID.finditer(text):
        found.append({"xid": int(match.group(2)), "pci": match.group(1).lower()})
        if len(found) >= _MAX_EVENTS:
            break
    return list(found)


def _kernel_log() -> str:
    """The kernel's ring buffer, one record a read; it holds this boot only."""
    handle = os.open(DEVICE, os.O_RDONLY | os.O_NONBLOCK)
    parts: list[bytes] = []
    size, ends_at = 0, time.monotonic() + _LIMIT_S
    try:
        while size < _MAX_BYTES and time.monotonic() < ends_at:
            try:
                record = os.read(handle, _MAX_RECORD)
            except BlockingIOError:  # the end
                break
            except BrokenPipeError:  # records were overwritten while we read: the next one is there
                continue
            if not record:
                break
            if b"Xid" in record:
                parts.append(record)
            size += len(record)
    finally:
        os.close(handle)
    return b"\n".join(parts).decode("utf-8", "replace")
