"""Whole lines of an input that is made of records, some megabytes at a time."""

from __future__ import annotations

from collections.abc import Iterator

from floatscope_diagnostics.readers.opening import MAX_LINE_BYTES, Opened
from floatscope_diagnostics.readers.run_log import UnreadableLog


def line_blocks(opened: Opened, size: int) -> Iterator[tuple[int, bytes]]:
    """Blocks of whole lines and the number of the first line of each. Raises UnreadableLog for a line beyond
    64 MiB."""
    rest: list[bytes] = []
    held = 0
    line = 1
    while data := opened.read(size):
        cut = data.rfind(b"\n") + 1
        if not cut:
            rest.append(data)
            held += len(data)
            if held > MAX_LINE_BYTES:
                raise UnreadableLog(
                    f"line {line:,} is longer than 64 MiB: this is not a log with one step a line. "
                    "Check that the file is the training log."
                )
            continue
        block = b"".join((*rest, data[:cut]))
        rest, held = [data[cut:]], len(data) - cut
        yield line, block
        line += block.count(b"\n")
    last = b"".join(rest)
    if last:
        yield line, last
