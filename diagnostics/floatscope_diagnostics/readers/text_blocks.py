"""Whole lines of a text log, some megabytes at a time."""

from __future__ import annotations

from collections.abc import Iterator

from floatscope_diagnostics.readers.opening import MAX_TEXT_LINE_BYTES, Opened

BLOCK_BYTES = 2 << 20
_BOM = b"\xef\xbb\xbf"


def text_blocks(opened: Opened) -> Iterator[tuple[int, bytes]]:
    """Number of the first line, and lines with their ends. A line longer than a block is cut at 64 KiB."""
    rest = b""
    number = 1
    cut = 0
    inside = False  # the rest of a line that was cut
    while data := opened.read(BLOCK_BYTES):
        if number == 1 and not rest:
            data = data.removeprefix(_BOM)
        if inside:
            end = data.find(b"\n")
            if end < 0:
                continue
            data, inside = data[end:], False
        data = rest + data
        end = data.rfind(b"\n") + 1
        block, rest = data[:end], data[end:]
        if block:
            yield number, block.replace(b"\r\n", b"\n") if b"\r" in block else block
            number += block.count(b"\n")
        if len(rest) > max(BLOCK_BYTES, MAX_TEXT_LINE_BYTES):
            rest, inside = rest[:MAX_TEXT_LINE_BYTES], True
            cut += 1
    if rest:
        yield number, rest
    if cut:
        opened.notes.append(f"lines longer than 64 KiB were cut: {cut:,}")
